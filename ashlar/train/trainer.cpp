#include "ashlar/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "ashlar/kernels/update.h"
#include "ashlar/optim/schedule.h"
#include "ashlar/parallel/muon_holdings.h"

namespace ashlar::train {

Trainer::Trainer(const Recipe& recipe, DType compute, Allocator& allocator, Threads& threads,
                 comm::Group& ranks, std::optional<StepMemory> memory,
                 const kernels::ProductTable* products, parallel::SharedMuonPlans* muon_plans,
                 const ComputeDevice& on)
    // Members point at those declared before them.
    : workspace_(memory ? Arena(allocator, memory->workspace_bytes, Tag::kWorkspace)
                        : Arena(Device::kMeta)),
      ctx_{.device = allocator.device(),
           .ops = on.ops,
           .threads = &threads,
           .workspace = &workspace_,
           .trace = &ranks.trace(),
           .products = products,
           .spec = on.spec,
           .stream = on.stream},
      model_(ctx_, allocator, recipe, resolve_parallel(recipe, ranks.size()), ranks, compute,
             {.late_bytes = memory ? std::optional(memory->late_bytes) : std::nullopt,
              .muon_plans = muon_plans}),
      optimizer_(make_optimizer(allocator, model_, model_.muon().group(), model_.parameters())),
      balancer_(make_balancer(allocator)) {
  ASHLAR_ASSERT(memory || allocator.device() == Device::kMeta);
  optimizer_.pack_in_updates(model_.packed_rows());
}

optim::Optimizer make_optimizer(Allocator& allocator, const parallel::RankModel& model,
                                comm::Group& muon_ranks, std::vector<Parameter> parameters) {
  const OptimSpec& spec = model.recipe().optim;
  optim::apply_spec(spec, parameters);
  auto matrices = model.muon().make(allocator, muon_ranks, parameters);
  return optim::Optimizer(allocator, std::move(parameters), spec, model.local().types().compute,
                          std::move(matrices));
}

optim::Balancer Trainer::make_balancer(Allocator& allocator) const {
  const nn::ModelWeights& weights = model_.local().weights();
  std::vector<optim::Balancer::Biases> biases;
  size_t counts = 0;  // number of the block among those with experts
  weights.for_each_block([&](const nn::Block& block, int64_t l) {
    if (!block.feed_forward->load(0)) return;
    for (const nn::Stored& stored : weights.tensors)
      if (stored.is_buffer() && !stored.is_frozen() && stored.block == l)
        biases.push_back({stored.weight->value, stored.logical[0].name, counts});
    ++counts;
  });
  return optim::Balancer(allocator, std::move(biases), recipe().balance);
}

void Trainer::run(int64_t step, std::span<const MicroBatch> batches,
                  function_ref<void(int64_t)> ended) {
  step_ = step;
  ctx_.enter("start of step");
  balancer_.keep(ctx_);
  model_.step(batches, [&](int64_t i) {
    if (recipe().balance.scope == BalanceScope::kMicroBatch)
      balancer_.update(ctx_, model_.loads(), balance_factor());
    ended(i);
  });
}

void Trainer::reduce() {
  model_.reduce();
}

// Gradients were scaled as if every token of the step had a target; the number of targets is known
// only after the last micro-batch.
double Trainer::target_correction() const {
  const double tokens = double(recipe().train.global_batch * recipe().data.sequence_length);
  return losses_.count == 0 ? 1.0 : tokens / losses_.count;
}

// The routers' losses are means over the tokens that they saw, which exclude padding; the loads
// give the number of these tokens.
double Trainer::padding_correction() const {
  if (!model_.has_router_losses()) return 1.0;
  int64_t choices = 0;
  for (const int64_t count : model_.all_step_loads()[0]) choices += count;
  const double seen = double(choices) / double(recipe().model.linear_router.num_chosen);
  const double tokens = double(recipe().train.global_batch * recipe().data.sequence_length);
  return choices == 0 ? 1.0 : tokens / seen;
}

StepStats Trainer::measure() {
  StepStats stats;
  ctx_.enter("gradient norm");
  const double here = optimizer_.gradient_squares(
      ctx_, [&](std::span<const kernels::Download> squares) { model_.download_results(squares); });
  losses_ = model_.over_ranks(model_.losses(), "loss");
  stats.num_targets = int64_t(losses_.count);
  const double squares = model_.sum_over_ranks(here, "gradient norm");
  stats.gradient_norm = std::sqrt(squares) * target_correction();
  if (ctx_.meta()) return stats;  // the sum's traffic is counted; there are no numbers to report
  stats.loss = losses_.sum / double(losses_.count);
  stats.aux_loss = losses_.aux_loss * padding_correction();
  stats.z_loss = losses_.z_loss * padding_correction();
  stats.expert_rounds = losses_.mixtures > 0 ? losses_.rounds / losses_.mixtures : 0.0;
  for (const std::span<const int64_t> loads : model_.all_step_loads()) {
    const auto experts = loads.first(loads.size() - 1);  // without the class of skipped choices
    stats.entropy += optim::load_entropy(experts) / double(model_.all_step_loads().size());
    int64_t total = 0, most = 0;
    for (const int64_t count : experts) total += count, most = std::max(most, count);
    if (total > 0)
      stats.max_load =
          std::max(stats.max_load, double(most) * double(experts.size()) / double(total));
  }
  return stats;
}

std::string Trainer::first_bad_gradient() const {
  for (const Parameter& p : optimizer_.parameters()) {
    const int64_t index = kernels::first_non_finite(ctx_, p.gradient);
    if (index >= 0) return fmt::format("{}[{}]", p.logical.name, index);
  }
  return "";
}

void Trainer::apply(const StepStats& stats) {
  ctx_.enter("optimizer");
  const double clip = optim::clip_factor(stats.gradient_norm, recipe().optim.clip_norm);
  optimizer_.step(ctx_, learning_rate(step_), clip * target_correction());
  if (recipe().balance.scope == BalanceScope::kGlobalBatch)
    balancer_.update(ctx_, model_.step_loads(), balance_factor());
  weights_changed(/*by_updates=*/true);
}

void Trainer::skip() {
  ctx_.enter("optimizer");
  balancer_.undo(ctx_);
}

LossSum Trainer::evaluate(const MicroBatch& batch) {
  return model_.over_ranks(model_.evaluate(batch), "validation loss");
}

double Trainer::balance_factor() const {
  return optim::schedule_factor(recipe().optim, step_, recipe().train.steps);
}

double Trainer::learning_rate(int64_t step) const {
  return optim::learning_rate(recipe().optim, step, recipe().train.steps);
}

int64_t Trainer::num_parameters() const {
  int64_t total = 0;
  for (const Parameter& p : model_.all_parameters()) total += p.logical.global_shape.numel();
  return total;
}

void Trainer::restore_counters(int64_t optimizer_steps, int64_t balancer_updates) {
  optimizer_.set_num_steps(optimizer_steps);
  balancer_.set_num_updates(balancer_updates);
}

std::vector<Piece> Trainer::optimizer_pieces(bool to_write) const {
  std::vector<Piece> pieces = optimizer_.pieces(to_write);
  if (to_write && !model_.writes_buffers()) return pieces;
  for (Piece& piece : balancer_.pieces()) pieces.push_back(std::move(piece));
  return pieces;
}

std::vector<LogicalTensor> Trainer::whole_state() const {
  std::vector<LogicalTensor> list;
  const std::vector<LogicalTensor> buffers = model_.all_buffers();
  list = buffers;
  std::vector<Parameter> parameters = model_.all_parameters();
  optim::apply_spec(recipe().optim, parameters);
  for (const Parameter& p : parameters) {
    list.push_back(p.logical);
    for (LogicalTensor& state : optim::state_tensors(p)) list.push_back(std::move(state));
  }
  for (const LogicalTensor& biases : buffers)
    for (LogicalTensor& state : optim::balancing_state(biases)) list.push_back(std::move(state));
  return list;
}

}  // namespace ashlar::train
