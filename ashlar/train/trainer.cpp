#include "ashlar/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "ashlar/kernels/update.h"
#include "ashlar/nn/init.h"
#include "ashlar/optim/schedule.h"
#include "ashlar/parallel/muon_holdings.h"

namespace ashlar::train {
namespace {

nn::Keep keep_of(const Recipe& recipe) {
  return recipe.train.recompute ? nn::Keep::kBlockInput : nn::Keep::kAll;
}

struct Inputs {
  Tensor ids, targets, loss, counts_LX;
};

parallel::ContextSplit context_split(const Recipe& recipe, const ParallelSpec& parallel) {
  return {parallel.cp_layout, int(parallel.cp), recipe.train.micro_batch,
          recipe.data.sequence_length};
}

Inputs lay_out_inputs(Arena& arena, const ModelSpec& spec, DType stream, int64_t num_tokens) {
  Inputs in;
  in.ids = arena.take(DType::kI32, {num_tokens});
  in.targets = arena.take(DType::kI32, {num_tokens});
  in.loss = arena.take(stream, {num_tokens});
  in.counts_LX = arena.take(DType::kI64, {spec.num_hidden_layers, spec.num_classes()});
  return in;
}

optim::Balancer make_balancer(Allocator& allocator, const nn::Model& model,
                              const BalanceSpec& spec) {
  std::vector<Tensor> biases;
  std::vector<std::string> names;
  model.weights().for_each(model.spec(), [&](const nn::ParameterInfo& info, const Tensor& tensor) {
    if (!info.buffer) return;
    biases.push_back(tensor);
    names.push_back(info.name);
  });
  return optim::Balancer(allocator, std::move(biases), std::move(names), spec);
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, DType compute, Allocator& allocator, Threads& threads,
                 comm::Group& ranks, std::optional<int64_t> workspace_bytes,
                 kernels::Recorder* recorder)
    : recipe_(recipe),
      parallel_(resolve_parallel(recipe_, ranks.size())),
      groups_(ranks, parallel::Mesh::of(parallel_)),
      workspace_(workspace_bytes ? Arena(allocator, *workspace_bytes, Tag::kWorkspace)
                                 : Arena(Device::kMeta)),
      ctx_{.device = allocator.device(),
           .threads = &threads,
           .workspace = &workspace_,
           .recorder = recorder},
      model_(ctx_, allocator, parallel::local_spec(recipe_.model, tensor_place()), compute,
             recipe_.data.sequence_length, true,
             parallel::model_memory(ctx_, parallel_, groups_.data().size(), compute)),
      saved_arena_(nn::arena_for(allocator, Tag::kSaved, [&](Arena& arena) { save_in(arena); })),
      input_arena_(nn::arena_for(allocator, Tag::kInput,
                                 [&](Arena& arena) {
                                   lay_out_inputs(arena, recipe_.model, model_.types().stream,
                                                  token_counts().stream);
                                 })),
      saved_(save_in(saved_arena_)),
      context_(parallel_.cp == 1
                   ? nullptr
                   : parallel::make_context_parallel(parallel_.cp_exchange, groups_.cp(),
                                                     context_split(recipe_, parallel_),
                                                     model_.spec(), model_.types(), allocator)),
      tensor_(parallel_.tp == 1 ? nullptr
                                : std::make_unique<parallel::TensorRunner>(
                                      groups_.tp(), model_, parallel_.sequence_parallel)),
      partial_(shards_stream() ? std::make_unique<parallel::PartialSums>(allocator, model_)
                               : nullptr),
      local_ids_(size_t(token_counts().layer)),
      zero_(ctx_, allocator, parallel_, groups_.data(), model_,
            tensor_ ? static_cast<nn::BlockRunner&>(*tensor_) : model_.local_runner(),
            [&](const nn::ParameterInfo& info, const Tensor& local) {
              return parallel::placements(recipe_.model, tensor_place(), info.name, local.shape);
            }),
      optimizer_(make_optimizer(allocator, compute)),
      balancer_(make_balancer(allocator, model_, recipe_.balance)) {
  ASHLAR_ASSERT(workspace_bytes || allocator.device() == Device::kMeta);
  Inputs inputs =
      lay_out_inputs(input_arena_, recipe_.model, model_.types().stream, token_counts().stream);
  ids_ = inputs.ids;
  targets_ = inputs.targets;
  loss_ = inputs.loss;
  counts_LX_ = inputs.counts_LX;
  for (int64_t l = 0; l < recipe_.model.num_hidden_layers; ++l)
    counts_.push_back(counts_LX_.slice(l, l + 1).view({recipe_.model.num_classes()}));
  for (const nn::BlockSaved& block : saved_.blocks) routed_.push_back(block.moe.plan.count_X);
}

parallel::TensorPlace Trainer::tensor_place() const {
  return {int(parallel_.tp), groups_.coordinate(parallel::Axis::kTp)};
}

bool Trainer::shards_stream() const {
  return parallel_.tp > 1 && parallel_.sequence_parallel;
}

nn::TokenCounts Trainer::token_counts() const {
  const int64_t layer = recipe_.train.micro_batch * recipe_.data.sequence_length / parallel_.cp;
  return {shards_stream() ? layer / parallel_.tp : layer, layer};
}

nn::Saved Trainer::save_in(Arena& arena) const {
  const int64_t num_halos = parallel_.cp == 1
                                ? 0
                                : parallel::max_halos(context_split(recipe_, parallel_),
                                                      groups_.coordinate(parallel::Axis::kCp));
  return nn::Saved::make(arena, model_.spec(), model_.types(), token_counts(), num_halos,
                         keep_of(recipe_));
}

optim::Optimizer Trainer::make_optimizer(Allocator& allocator, DType compute) const {
  std::vector<Parameter> parameters = zero_.parameters();
  optim::apply_spec(recipe_.optim, parameters);
  auto matrices = parallel::make_matrices(allocator, groups_, recipe_.model, zero_, parameters,
                                          recipe_.optim, parallel_.muon, compute);
  return optim::Optimizer(allocator, std::move(parameters), recipe_.optim, compute,
                          std::move(matrices));
}

void Trainer::initialize() {
  const auto fill = [&](const nn::ParameterInfo& info, const Piece& piece) {
    nn::initialize(ctx_, info, piece, recipe_.model, recipe_.init, recipe_.train.seed);
  };
  for (size_t i = 0; i < zero_.parameters().size(); ++i) {
    const Parameter& p = zero_.parameters()[i];
    for (const Piece& piece : pieces_of(p, p.logical, p.value)) fill(zero_.infos()[i], piece);
  }
  model_.weights().for_each(model_.spec(),
                            [&](const nn::ParameterInfo& info, const Tensor& tensor) {
                              if (info.buffer) fill(info, nn::whole_piece(info, tensor));
                            });
  weights_changed();
}

void Trainer::begin_step(int64_t step) {
  step_ = step;
  kernels::zero(ctx_, model_.unit_gradients(0));
  num_accumulated_ = 0;
  fill_zero(counts_LX_);
  loss_sum_ = 0.0;
  num_targets_ = 0;
}

void Trainer::load(const MicroBatch& batch) {
  const auto tokens = size_t(recipe_.train.micro_batch * recipe_.data.sequence_length);
  ASHLAR_ASSERT(batch.ids.size() == tokens && batch.targets.size() == tokens);
  context_ ? context_->assign(batch.segments) : sequence_.assign(batch.segments);
  if (ctx_.meta()) return;
  take(batch.ids, ids_);
  take(batch.targets, targets_);
}

// This rank's tokens: its part of every row, and of that what its stream has.
void Trainer::take(std::span<const int32_t> whole, const Tensor& out) {
  std::span<const int32_t> local = whole;
  if (context_) {
    parallel::take_local(context_->split(), context_->rank(), whole, local_ids_);
    local = local_ids_;
  }
  if (shards_stream())
    local = local.subspan(size_t(out.numel() * groups_.tp().rank()), size_t(out.numel()));
  std::memcpy(out.data, local.data(), local.size_bytes());
}

nn::ModelCall Trainer::call(bool accumulate) {
  if (context_) return model_.call(*context_, context_->sequence(), ids_, accumulate, &zero_);
  return model_.call(local_, sequence_, ids_, accumulate, &zero_);
}

void Trainer::accumulate(const MicroBatch& batch) {
  load(batch);
  zero_.begin_micro_batch(num_accumulated_ == 0, num_accumulated_ + 1 == micro_batches_per_step());
  ++num_accumulated_;
  zero_.need_root(ctx_);
  const nn::ModelCall call = this->call(zero_.accumulates());
  forward(ctx_, call, saved_);
  {
    ctx_.enter("loss");
    const Arena::Scope scope(workspace_);
    const Tensor dfinal = workspace_.take(saved_.final_TH.dtype, saved_.final_TH.shape);
    // Gradients of the mean over all tokens of the step, with or without a target.
    const double scale = 1.0 / double(recipe_.train.global_batch * recipe_.data.sequence_length);
    head_loss_backward(ctx_, model_, saved_.final_TH, targets_, scale, loss_, dfinal,
                       model_.gradients().embed);
    backward(ctx_, call, saved_, dfinal, model_.gradients());
  }
  const auto [sum, count] = sum_losses();
  loss_sum_ += sum;
  num_targets_ += count;
  count_loads();
}

std::pair<double, int64_t> Trainer::sum_losses() const {
  if (ctx_.meta()) return {0.0, loss_.numel()};
  double sum = 0.0;
  int64_t count = 0;
  const int32_t* targets = targets_.as<int32_t>();
  for (int64_t t = 0; t < loss_.numel(); ++t) {
    if (targets[t] < 0) continue;
    sum += loss_.dtype == DType::kF64 ? loss_.as<double>()[t] : double(loss_.as<float>()[t]);
    ++count;
  }
  return {sum, count};
}

void Trainer::count_loads() {
  const bool each = recipe_.balance.scope == BalanceScope::kMicroBatch;
  if (each)
    for (const Tensor& routed : routed_) groups_.data().all_reduce(routed, routed, "loads").wait();
  if (ctx_.meta()) return;
  for (size_t l = 0; l < counts_.size(); ++l) {
    const int64_t* routed = routed_[l].as<int64_t>();
    int64_t* total = counts_[l].as<int64_t>();
    for (int64_t e = 0; e < counts_[l].numel(); ++e) total[e] += routed[e];
  }
  if (each) balancer_.update(routed_, balance_factor());
}

void Trainer::reduce() {
  ctx_.enter("reduce");
  if (partial_) partial_->sum(ctx_, groups_.tp());
  zero_.finish_gradients(ctx_);
  if (recipe_.balance.scope == BalanceScope::kGlobalBatch)
    groups_.data().all_reduce(counts_LX_, counts_LX_, "loads").wait();
  std::tie(loss_sum_, num_targets_) = over_ranks({loss_sum_, num_targets_}, "loss");
}

std::pair<double, int64_t> Trainer::over_ranks(std::pair<double, int64_t> losses,
                                               std::string_view label) {
  sums_ = {losses.first, double(losses.second)};  // counts are exact below 2^53
  const Tensor sums = over(sums_);
  // Ranks that share heads have the same losses, unless they share the stream too.
  comm::Group& ranks = shards_stream() ? groups_.model() : groups_.data();
  ranks.all_reduce(sums, sums, label).wait();
  if (ctx_.meta()) return {0.0, losses.second * ranks.size()};
  return {sums_[0], int64_t(sums_[1])};
}

// What ranks keep of the same state, added up.
double Trainer::sum_over_ranks(double value, std::string_view label) {
  sums_ = {value, 0.0};
  const Tensor sums = over(std::span(sums_).first(1));
  groups_.model().all_reduce(sums, sums, label).wait();
  return sums_[0];
}

Tensor Trainer::over(std::span<double> values) const {
  return {ctx_.meta() ? nullptr : reinterpret_cast<std::byte*>(values.data()),
          DType::kF64,
          ctx_.device,
          {int64_t(values.size())}};
}

// Gradients were scaled as if every token of the step had a target.
double Trainer::target_correction() const {
  const double tokens = double(recipe_.train.global_batch * recipe_.data.sequence_length);
  return num_targets_ == 0 ? 1.0 : tokens / double(num_targets_);
}

StepStats Trainer::measure() {
  StepStats stats;
  stats.num_targets = num_targets_;
  ctx_.enter("gradient norm");
  const double squares = sum_over_ranks(optimizer_.gradient_squares(ctx_), "gradient norm");
  stats.gradient_norm = std::sqrt(squares) * target_correction();
  if (ctx_.meta()) return stats;
  stats.loss = num_targets_ == 0 ? 0.0 : loss_sum_ / double(num_targets_);
  for (const Tensor& counts : counts_) {
    const auto experts = counts.span<int64_t>().first(size_t(recipe_.model.num_experts));
    stats.entropy += optim::load_entropy(experts) / double(counts_.size());
    int64_t total = 0, most = 0;
    for (const int64_t count : experts) total += count, most = std::max(most, count);
    if (total > 0)
      stats.max_load =
          std::max(stats.max_load, double(most) * double(experts.size()) / double(total));
  }
  return stats;
}

void Trainer::apply(const StepStats& stats) {
  ctx_.enter("optimizer");
  const double clip = optim::clip_factor(stats.gradient_norm, recipe_.optim.clip_norm);
  const double lr = learning_rate(step_);
  optimizer_.step(ctx_, lr, clip * target_correction());
  if (recipe_.balance.scope == BalanceScope::kGlobalBatch)
    balancer_.update(counts_, balance_factor());
  weights_changed();
}

std::pair<double, int64_t> Trainer::evaluate(const MicroBatch& batch) {
  load(batch);
  zero_.begin_forward();
  zero_.need_root(ctx_);
  forward(ctx_, call(true), saved_);
  ctx_.enter("loss");
  head_loss(ctx_, model_, saved_.final_TH, targets_, loss_);
  return over_ranks(sum_losses(), "validation loss");
}

std::string Trainer::first_bad_gradient() {
  for (const Parameter& p : optimizer_.parameters()) {
    const int64_t index = kernels::first_non_finite(ctx_, p.gradient);
    if (index >= 0) return fmt::format("{}[{}]", p.logical.name, index);
  }
  return "";
}

void Trainer::restore_counters(int64_t optimizer_steps, int64_t balancer_updates) {
  optimizer_.set_num_steps(optimizer_steps);
  balancer_.set_num_updates(balancer_updates);
}

std::vector<Piece> Trainer::model_pieces(bool to_write) const {
  std::vector<Piece> pieces;
  for (const Parameter& p : optimizer_.parameters())
    for (Piece& piece : pieces_of(p, p.logical, p.value, to_write))
      pieces.push_back(std::move(piece));
  if (to_write && groups_.rank() != 0) return pieces;  // buffers are equal on all ranks
  model_.weights().for_each(model_.spec(),
                            [&](const nn::ParameterInfo& info, const Tensor& tensor) {
                              if (info.buffer) pieces.push_back(nn::whole_piece(info, tensor));
                            });
  return pieces;
}

std::vector<Piece> Trainer::optimizer_pieces(bool to_write) const {
  std::vector<Piece> pieces = optimizer_.pieces(to_write);
  if (to_write && groups_.rank() != 0) return pieces;
  for (Piece& piece : balancer_.pieces()) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<LogicalTensor> Trainer::whole_state() const {
  std::vector<Parameter> parameters;
  Arena shapes(Device::kMeta);
  std::vector<LogicalTensor> list;
  nn::ModelWeights::make(shapes, recipe_.model, model_.types().stream, true)
      .for_each(recipe_.model, [&](const nn::ParameterInfo& info, const Tensor& tensor) {
        if (info.buffer) {
          list.push_back(nn::whole_piece(info, tensor).logical);
          return;
        }
        Parameter& p = parameters.emplace_back();
        p.logical = {info.name, tensor.dtype, tensor.shape, Role::kParameter};
        p.kind = info.kind;
      });
  optim::apply_spec(recipe_.optim, parameters);
  for (const Parameter& p : parameters) {
    list.push_back(p.logical);
    for (LogicalTensor& state : optim::state_tensors(p)) list.push_back(std::move(state));
  }
  for (Piece& piece : balancer_.pieces()) list.push_back(std::move(piece.logical));
  return list;
}

int64_t Trainer::micro_batches_per_step() const {
  return recipe_.train.global_batch / recipe_.train.micro_batch / parallel_.dp;
}

int64_t Trainer::num_parameters() const {
  int64_t total = 0;
  for (const nn::FlatPlace& place : nn::flat_layout(recipe_.model, DType::kF32).places)
    total += place.numel;
  return total;
}

std::vector<const comm::Group*> Trainer::all_groups() const {
  std::vector<const comm::Group*> list = {&groups_.world(), &groups_.cp(), &groups_.tp(),
                                          &groups_.data(), &groups_.model()};
  if (tensor_ && tensor_->sharers()) list.push_back(tensor_->sharers());
  return list;
}

double Trainer::balance_factor() const {
  return optim::schedule_factor(recipe_.optim, step_, recipe_.train.steps);
}

double Trainer::learning_rate(int64_t step) const {
  return optim::learning_rate(recipe_.optim, step, recipe_.train.steps);
}

}  // namespace ashlar::train
