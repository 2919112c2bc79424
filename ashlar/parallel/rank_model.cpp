// How the parts meet.  The layers of nn see three things of the mesh, which RankModel chooses:
//
//   exchanges  nn::LocalExchange, or CpSequence where ranks share sequences; HeadSums and
//              ExpertSums where they share heads and width
//   branches   those of nn, within TpBranch where ranks share heads and width
//   residency  Zero; on one data rank it only packs weights after they changed
#include "ashlar/parallel/rank_model.h"

#include <array>

#include "ashlar/kernels/copy.h"
#include "ashlar/nn/init.h"
#include "ashlar/nn/loss.h"
#include "ashlar/parallel/cp.h"
#include "ashlar/parallel/muon_holdings.h"
#include "ashlar/parallel/tp.h"
#include "ashlar/parallel/tp_sums.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

LossSum& LossSum::operator+=(const LossSum& other) {
  sum += other.sum;
  count += other.count;
  balance += other.balance;
  z += other.z;
  return *this;
}

// --- composition ---

RankModel::RankModel(const kernels::Context& ctx, Allocator& allocator, const Recipe& recipe,
                     const ParallelSpec& resolved, comm::Group& world, DType compute,
                     const RankModelOptions& options)
    : recipe_(recipe), parallel_(resolved), ctx_(ctx), groups_(world, Mesh::of(resolved)) {
  take_share(allocator, compute);
  lay_out_activations(allocator, options.num_halos);
  lay_out_inputs(allocator);
  if (parallel_.cp > 1) share_sequences(allocator);
  if (parallel_.tp > 1) share_layers();
  if (parallel_.tp > 1) sum_partial(allocator);
  shard_state(allocator);
  program_ = one_stage(micro_batches_per_step());
  const int64_t num_blocks = model_->spec().num_blocks();
  step_uses_ = uses_of(program_, num_blocks, recipe_.train.recompute);
  evaluation_uses_ =
      uses_of(std::array{Action{Action::Kind::kForward, 0}}, num_blocks, recipe_.train.recompute);
}

RankModel::~RankModel() = default;

CpSplit RankModel::cp_split() const {
  return {parallel_.cp_layout, int(parallel_.cp), recipe_.train.micro_batch,
          recipe_.data.sequence_length};
}

nn::TokenCounts RankModel::token_counts() const {
  const int64_t layer = cp_split().local_tokens();
  return {shards_stream() ? layer / parallel_.tp : layer, layer};
}

void RankModel::take_share(Allocator& allocator, DType compute) {
  const nn::Share share = nn::Share::even(groups_.coordinate(Axis::kTp), int(parallel_.tp));
  model_ = std::make_unique<nn::Model>(
      ctx_, allocator, model_of(recipe_.model), compute, recipe_.data.sequence_length,
      nn::ModelOptions{.memory = model_memory(ctx_, parallel_, groups_.data().size(), compute),
                       .share = share,
                       .init = recipe_.init});
}

void RankModel::lay_out_activations(Allocator& allocator, int64_t num_halos) {
  const int64_t most = num_halos + max_halos(cp_split(), groups_.coordinate(Axis::kCp));
  const nn::Keep keep = recipe_.train.recompute ? nn::Keep::kBlockInput : nn::Keep::kAll;
  const auto lay_out = [&](Arena& arena) {
    return nn::Saved::make(arena, model_->weights(), model_->types(), token_counts(), most, keep);
  };
  saved_arena_ = arena_for(allocator, Tag::kSaved, [&](Arena& arena) { lay_out(arena); });
  saved_ = lay_out(saved_arena_);
  const bool losses = recipe_.balance.aux_loss_coef > 0 || recipe_.balance.z_loss_coef > 0;
  for (const nn::Block& block : model_->blocks()) {
    const auto load = block.feed_forward->load(saved_.slot);
    if (!load) continue;
    loads_.push_back(load->count_X);
    if (losses && load->losses_2) router_losses_.push_back(load->losses_2);
  }
}

void RankModel::lay_out_inputs(Allocator& allocator) {
  const int64_t num_tokens = token_counts().stream;
  int64_t num_classes = 0;  // of all blocks with experts
  for (const Tensor& loads : loads_) num_classes += loads.numel();
  const auto lay_out = [&](Arena& arena) {
    ids_ = arena.take(DType::kI32, {num_tokens});
    targets_ = arena.take(DType::kI32, {num_tokens});
    loss_ = arena.take(model_->types().stream, {num_tokens});
    all_step_loads_ = arena.take(DType::kI64, {num_classes});
  };
  input_arena_ = arena_for(allocator, Tag::kInput, lay_out);
  lay_out(input_arena_);
  int64_t begin = 0;
  for (const Tensor& loads : loads_) {
    step_loads_.push_back(all_step_loads_.slice(begin, begin + loads.numel()));
    begin += loads.numel();
  }
  // This rank's part of every row, and of that what its stream has.
  const int64_t first = shards_stream() ? num_tokens * groups_.tp().rank() : 0;
  for (int64_t i = 0; i < num_tokens; ++i)
    whole_rows_.push_back(whole_row(cp_split(), groups_.coordinate(Axis::kCp), first + i));
  local_.resize(whole_rows_.size());
  if (parallel_.cp == 1) sequence_.reserve(token_counts().layer);
}

void RankModel::share_sequences(Allocator& allocator) {
  cp_ = make_cp_sequence(parallel_.cp_exchange, groups_.cp(), cp_split(), model_->weights().needs(),
                         model_->types(), allocator);
}

void RankModel::share_layers() {
  comm::Group& tp = groups_.tp();
  const bool sequence = parallel_.sequence_parallel;
  for (nn::Block& block : model_->blocks()) {
    block.mixer = std::make_unique<TpBranch>(std::move(block.mixer), tp, "tp attention", sequence);
    block.feed_forward =
        std::make_unique<TpBranch>(std::move(block.feed_forward), tp, "tp feed-forward", sequence);
  }
  expert_sums_ = std::make_unique<ExpertSums>(tp);
  head_sums_ = HeadSums::among(tp, model_->weights().needs().key_copies);
}

void RankModel::sum_partial(Allocator& allocator) {
  partial_ = std::make_unique<PartialSums>(allocator, *model_, shards_stream());
  if (partial_->empty()) partial_.reset();
}

void RankModel::shard_state(Allocator& allocator) {
  zero_ = std::make_unique<Zero>(ctx_, allocator, parallel_, groups_.data(), *model_);
}

// --- a step ---

void RankModel::begin_step() {
  in_step_ = true;
  ctx_.enter("start of step");
  ctx_.enter_micro_batch(-1);
  fill(ctx_, model_->unit_gradients(0), 0.0);
  if (!loads_.empty()) fill(ctx_, all_step_loads_, 0.0);
  zero_->begin(step_uses_);
}

void RankModel::load(const MicroBatch& batch) {
  const auto num_tokens = size_t(recipe_.train.micro_batch * recipe_.data.sequence_length);
  ASHLAR_ASSERT(batch.ids.size() == num_tokens && batch.targets.size() == num_tokens);
  cp_ ? cp_->assign(batch.segments) : sequence_.assign(batch.segments);
  take_local(batch.ids, ids_);
  take_local(batch.targets, targets_);
}

void RankModel::take_local(std::span<const int32_t> whole, const Tensor& out) {
  for (size_t i = 0; i < whole_rows_.size(); ++i) local_[i] = whole[size_t(whole_rows_[i])];
  upload(ctx_, local_, out);
}

nn::ModelCall RankModel::call() {
  nn::ModelCall call = cp_ ? model_->call(*cp_, cp_->sequence(), ids_, zero_.get())
                           : model_->call(local_exchange_, sequence_, ids_, zero_.get());
  if (expert_sums_) call.exchanges.experts = expert_sums_.get();
  call.exchanges.heads = head_sums_.get();
  return call;
}

nn::StepLosses RankModel::step_losses() const {
  return {.balance = recipe_.balance.aux_loss_coef,
          .z = recipe_.balance.z_loss_coef,
          .token_share = 1.0 / double(recipe_.train.global_batch * recipe_.data.sequence_length),
          .num_rows = recipe_.train.micro_batch,
          .row_length = recipe_.data.sequence_length};
}

LossSum RankModel::step(std::span<const MicroBatch> batches, function_ref<void(int64_t)> ended) {
  ASHLAR_ASSERT(int64_t(batches.size()) == micro_batches_per_step());
  begin_step();
  LossSum losses;
  bool first = true;
  for (const Action& action : program_) {
    ctx_.enter_micro_batch(action.micro_batch);
    if (action.kind == Action::Kind::kForward) {
      run_forward(batches[size_t(action.micro_batch)]);
      continue;
    }
    losses += run_backward(first);
    first = false;
    ended(action.micro_batch);
  }
  return losses;
}

void RankModel::run_forward(const MicroBatch& batch) {
  ctx_.enter("inputs");
  load(batch);
  zero_->need_root(ctx_);
  forward(ctx_, call(), saved_);
}

// Of the micro-batch that ran forward last.
LossSum RankModel::run_backward(bool first) {
  nn::ModelCall call = this->call();
  call.accumulate = zero_->keeps_gradients() && !first;
  call.losses = step_losses();
  {
    ctx_.enter("loss");
    const Arena::Scope scope(*ctx_.workspace);
    const Tensor dfinal = ctx_.workspace->take(saved_.final_TH.dtype, saved_.final_TH.shape);
    head_loss_backward(ctx_, *model_, saved_.final_TH, targets_, call.losses.token_share, loss_,
                       dfinal);
    backward(ctx_, call, saved_, dfinal);
  }
  LossSum losses = sum_losses();
  sum_router_losses(losses);
  count_loads();
  return losses;
}

void RankModel::reduce() {
  ASHLAR_ASSERT(in_step_);
  ctx_.enter("reduce");
  ctx_.enter_micro_batch(-1);
  if (partial_) partial_->sum(ctx_, groups_.tp());
  zero_->finish_gradients(ctx_);
  if (!loads_.empty() && recipe_.balance.scope == BalanceScope::kGlobalBatch)
    groups_.data().all_reduce(all_step_loads_, all_step_loads_, "loads").wait();
  in_step_ = false;
}

LossSum RankModel::evaluate(const MicroBatch& batch) {
  ASHLAR_ASSERT(!in_step_);
  ctx_.enter("inputs");
  load(batch);
  zero_->begin(evaluation_uses_);
  zero_->need_root(ctx_);
  forward(ctx_, call(), saved_);
  ctx_.enter("loss");
  head_loss(ctx_, *model_, saved_.final_TH, targets_, loss_);
  return sum_losses();
}

LossSum RankModel::sum_losses() const {
  if (ctx_.meta()) return {.count = loss_.numel()};
  LossSum losses;
  const int32_t* targets = targets_.as<int32_t>();
  for (int64_t t = 0; t < loss_.numel(); ++t) {
    if (targets[t] < 0) continue;
    losses.sum += loss_.dtype == DType::kF64 ? loss_.as<double>()[t] : double(loss_.as<float>()[t]);
    ++losses.count;
  }
  return losses;
}

// Ranks that share heads have the same ones; where over_ranks adds up theirs too, one of them
// counts.
void RankModel::sum_router_losses(LossSum& losses) const {
  if (ctx_.meta() || (shards_stream() && groups_.tp().rank() > 0)) return;
  const auto value = [](const Tensor& t, size_t i) {
    return t.dtype == DType::kF64 ? t.as<double>()[i] : double(t.as<float>()[i]);
  };
  for (const Tensor& of_block : router_losses_) {
    losses.balance += value(of_block, 0);
    losses.z += value(of_block, 1);
  }
}

void RankModel::count_loads() {
  if (recipe_.balance.scope == BalanceScope::kMicroBatch)
    for (const Tensor& loads : loads_) groups_.data().all_reduce(loads, loads, "loads").wait();
  for (size_t l = 0; l < loads_.size(); ++l) add(ctx_, loads_[l], step_loads_[l]);
}

// --- numbers of all ranks ---

Tensor RankModel::over(std::span<double> values) const {
  return {ctx_.meta() ? nullptr : reinterpret_cast<std::byte*>(values.data()),
          DType::kF64,
          ctx_.device,
          {int64_t(values.size())}};
}

LossSum RankModel::over_ranks(const LossSum& here, std::string_view label) const {
  // Counts are exact below 2^53.
  std::array<double, 4> sums = {here.sum, double(here.count), here.balance, here.z};
  const auto used = std::span(sums).first(router_losses_.empty() ? 2 : 4);
  // Ranks that share heads have the same losses, unless they share the stream too.
  comm::Group& ranks = shards_stream() ? groups_.model() : groups_.data();
  ranks.all_reduce(over(used), over(used), label).wait();
  if (ctx_.meta()) return {.count = here.count * ranks.size()};
  return {sums[0], int64_t(sums[1]), sums[2], sums[3]};
}

double RankModel::sum_over_ranks(double here, std::string_view label) const {
  std::array<double, 1> sum = {here};
  groups_.model().all_reduce(over(sum), over(sum), label).wait();
  return sum[0];
}

// --- state ---

void RankModel::initialize() {
  const auto fill = [&](const nn::ParameterInfo& info, const Piece& piece) {
    nn::initialize(ctx_, info, piece, recipe_.train.seed);
  };
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Parameter& p = parameters()[i];
    for (const Piece& piece : pieces_of(p, p.logical, p.value)) fill(zero_->infos()[i], piece);
  }
  model_->weights().for_each(
      [&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        if (info.buffer) fill(info, nn::whole_piece(info, value));
      });
  weights_changed();
}

void RankModel::weights_changed() {
  zero_->weights_changed();
}

const std::vector<Parameter>& RankModel::parameters() const {
  return zero_->parameters();
}

std::vector<Piece> RankModel::buffers() const {
  std::vector<Piece> list;
  model_->weights().for_each(
      [&](const nn::ParameterInfo& info, const Tensor& value, const Tensor&) {
        if (info.buffer) list.push_back(nn::whole_piece(info, value));
      });
  return list;
}

std::vector<Piece> RankModel::pieces(bool to_write) const {
  std::vector<Piece> list;
  for (const Parameter& p : parameters())
    for (Piece& piece : pieces_of(p, p.logical, p.value, to_write))
      list.push_back(std::move(piece));
  if (to_write && !writes_buffers()) return list;
  for (Piece& piece : buffers()) list.push_back(std::move(piece));
  return list;
}

std::vector<Parameter> RankModel::all_parameters() const {
  std::vector<Parameter> list;
  const nn::ModelWeights whole(model_->spec());
  for (const nn::Stored& stored : whole.tensors)
    for (const nn::ParameterInfo& info : stored.logical)
      if (!info.buffer) list.push_back(parameter_of(info, model_->types().stream));
  return list;
}

std::unique_ptr<optim::Matrices> RankModel::make_matrices(
    Allocator& allocator, const std::vector<Parameter>& parameters) const {
  return parallel::make_matrices(allocator, groups_, model_->spec(), *zero_, parameters,
                                 recipe_.optim, parallel_.muon, model_->types().compute);
}

int64_t RankModel::micro_batches_per_step() const {
  return recipe_.train.global_batch / recipe_.train.micro_batch / parallel_.dp;
}

std::vector<const comm::Group*> RankModel::all_groups() const {
  std::vector<const comm::Group*> list = {&groups_.world(), &groups_.cp(), &groups_.tp(),
                                          &groups_.data(), &groups_.model()};
  if (head_sums_) list.push_back(&head_sums_->sharers());
  return list;
}

}  // namespace ashlar::parallel
