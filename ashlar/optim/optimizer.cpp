#include "ashlar/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "ashlar/kernels/update.h"
#include "ashlar/tensor/pieces.h"

namespace ashlar::optim {
namespace {

using kernels::Context;

bool is_muon(const Parameter& p) {
  return p.kind == OptimizerKind::kMuon;
}

std::vector<ParameterState> lay_out(Arena& arena, const std::vector<Parameter>& parameters) {
  std::vector<ParameterState> states;
  for (const Parameter& p : parameters) {
    ParameterState state;
    state.first = arena.take(p.value.dtype, p.value.shape);
    if (!is_muon(p)) state.second = arena.take(p.value.dtype, p.value.shape);
    states.push_back(state);
  }
  return states;
}

int64_t arena_bytes(const std::vector<Parameter>& parameters) {
  Arena counter(Device::kMeta);
  lay_out(counter, parameters);
  return counter.peak_bytes();
}

}  // namespace

void apply_spec(const OptimSpec& spec, std::vector<Parameter>& parameters) {
  for (Parameter& p : parameters) {
    if (spec.matrices == MatrixOptimizer::kAdamW) p.kind = OptimizerKind::kAdamW;
    if (spec.muon_split_gate_up) p.num_matrices *= std::exchange(p.halves, 1);
  }
}

double clip_factor(double norm, double clip) {
  return clip > 0.0 && norm > clip ? clip / norm : 1.0;
}

Optimizer::Optimizer(Allocator& allocator, std::vector<Parameter> parameters, const OptimSpec& spec,
                     DType compute, std::unique_ptr<Matrices> matrices)
    : parameters_(std::move(parameters)),
      spec_(spec),
      arena_(allocator, arena_bytes(parameters_), Tag::kOptimizer),
      states_(lay_out(arena_, parameters_)),
      squares_(size_t(std::count_if(parameters_.begin(), parameters_.end(),
                                    [](const Parameter& p) { return p.copy == 0; }))),
      matrices_(std::move(matrices)) {
  if (!matrices_)
    matrices_ = std::make_unique<LocalMatrices>(parameters_, compute, int(spec_.muon_steps));
}

double Optimizer::gradient_squares(const Context& ctx, Download download) {
  const Arena::Scope scope(*ctx.workspace);
  const Tensor squares = ctx.workspace->take(DType::kF64, {int64_t(squares_.size())});
  int64_t slot = 0;
  for (const Parameter& p : parameters_) {
    if (p.copy != 0) continue;
    kernels::sum_of_squares(ctx, p.gradient, squares.slice(slot, slot + 1));
    ++slot;
  }
  const kernels::Download list[] = {{.from = squares, .reals = squares_}};
  download(std::span(list).first(squares_.empty() ? 0 : 1));
  return std::accumulate(squares_.begin(), squares_.end(), 0.0);
}

void Optimizer::step(const Context& ctx, double lr, double grad_scale) {
  ++num_steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (!is_muon(p)) continue;
    kernels::muon_momentum(ctx, {.mu = spec_.muon_momentum,
                                 .nesterov = spec_.muon_nesterov,
                                 .grad_scale = grad_scale,
                                 .g = p.gradient,
                                 .m = states_[i].first,
                                 .x = p.gradient});
  }
  matrices_->start(ctx);
  adamw(ctx, lr, grad_scale);
  matrices_->finish(ctx);
  apply_muon(ctx, lr);
}

void Optimizer::adamw(const Context& ctx, double lr, double grad_scale) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (is_muon(p)) continue;
    const kernels::AdamWStep step{.lr = lr,
                                  .beta1 = spec_.beta1,
                                  .beta2 = spec_.beta2,
                                  .eps = spec_.eps,
                                  .decay = p.decay ? spec_.weight_decay : 0.0,
                                  .step = num_steps_,
                                  .grad_scale = grad_scale};
    kernels::adamw(ctx, {.step = step,
                         .g = p.gradient,
                         .w = p.value,
                         .m = states_[i].first,
                         .v = states_[i].second,
                         .packed = packed(i)});
  }
}

void Optimizer::apply_muon(const Context& ctx, double lr) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (!is_muon(p)) continue;
    const MatrixShape matrix = matrix_shape(p);
    const double lambda =
        lr * spec_.muon_scale * std::sqrt(double(std::max(matrix.rows, matrix.cols)));
    kernels::muon_apply(ctx, {.lr = lr,
                              .decay = p.decay ? spec_.weight_decay : 0.0,
                              .lambda = lambda,
                              .x = p.gradient,
                              .w = p.value,
                              .packed = packed(i)});
  }
}

std::vector<LogicalTensor> state_tensors(const Parameter& p) {
  const auto named = [&](const char* state) {
    return LogicalTensor{std::string("optim.") + state + "." + p.logical.name, p.logical.dtype,
                         p.logical.global_shape, Role::kOptimizerState};
  };
  if (is_muon(p)) return {named("momentum")};
  return {named("exp_avg"), named("exp_avg_sq")};
}

std::vector<Piece> Optimizer::pieces(bool to_write) const {
  std::vector<KeptTensor> kept;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor held[] = {states_[i].first, states_[i].second};
    const std::vector<LogicalTensor> names = state_tensors(parameters_[i]);
    for (size_t state = 0; state < names.size(); ++state)
      kept.push_back({&parameters_[i], names[state], held[state]});
  }
  return to_write ? pieces_to_write(kept) : pieces_of(kept);
}

}  // namespace ashlar::optim
