#include "ashlar/nn/mlp.h"

#include "ashlar/kernels/moe.h"

namespace ashlar::nn {

using kernels::Context;
using kernels::Matrix;

void MlpWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const int64_t width = std::get<MlpSpec>(layer.of_block().feed_forward).width;
  H = layer.model.hidden_size;
  F = layer.share.of(Grain::kWidth, width).size();
  const Section part{Grain::kWidth, width, 1, 0, width};
  visit({.weight = &gate_up,
         .logical = {layer.matrix("gate_proj.weight", {width, H}, layer.normal(), {0, {part}}),
                     layer.matrix("up_proj.weight", {width, H}, layer.normal(), {0, {part}})},
         .operand_shape = {2 * F, H}});
  visit({.weight = &down,
         .logical = {layer.matrix("down_proj.weight", {H, width}, layer.output(), {1, {part}})},
         .operand_shape = {H, F}});
}

MlpSaved MlpSaved::make(Arena& arena, const MlpWeights& weights, const Types& types,
                        int64_t num_tokens) {
  return {.gate_up = arena.take(types.activation, {num_tokens, 2 * weights.F}),
          .act = arena.take(types.activation, {num_tokens, weights.F})};
}

void MlpBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  saved_.set(slot, MlpSaved::make(arenas.block, weights_, types, shape.num_tokens));
}

// All that backward reads.
void MlpBranch::fill_act(const Context& ctx, const Pass& pass, const Tensor& m_TH) const {
  const MlpSaved& saved = saved_[pass.slot];
  linear_forward(ctx, pass.types.compute, Matrix::of(m_TH), weights_.gate_up.operand,
                 Matrix::of(saved.gate_up));
  swiglu_forward(ctx, {}, saved.gate_up, saved.act);
}

void MlpBranch::forward(const Context& ctx, const Pass& pass, int, const Tensor& m_TH, const Carry&,
                        const Tensor& e_TH) {
  fill_act(ctx, pass, m_TH);
  linear_forward(ctx, pass.types.compute, Matrix::of(saved_[pass.slot].act), weights_.down.operand,
                 Matrix::of(e_TH), pass.adds);
}

void MlpBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  part == 0 ? backward_inputs(ctx, pass, t) : backward_weights(ctx, pass, t);
}

void MlpBranch::backward_inputs(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  if (pass.replay) fill_act(ctx, pass, t.a);
  const MlpWeights& w = weights_;
  const MlpSaved& saved = saved_[pass.slot];
  const auto [stream, activation, compute] = pass.types;
  dgate_up_ = gradient_room(ctx, pass, activation, saved.gate_up.shape);
  const Arena::Scope inner(*ctx.workspace);
  const Tensor dact = ctx.workspace->take(activation, saved.act.shape);
  linear_backward_input(ctx, compute, Matrix::of(t.d_o), w.down.operand, Matrix::of(dact));
  swiglu_backward(ctx, {}, dact, saved.gate_up, dgate_up_);
  linear_backward_input(ctx, compute, Matrix::of(dgate_up_), w.gate_up.operand, Matrix::of(t.da),
                        pass.adds);
}

void MlpBranch::backward_weights(const Context& ctx, const Pass& pass, const BackwardTensors& t) {
  weight_gradient(ctx, pass, Matrix::of(t.d_o), Matrix::of(saved_[pass.slot].act),
                  weights_.down.gradient);
  weight_gradient(ctx, pass, Matrix::of(dgate_up_), Matrix::of(t.a), weights_.gate_up.gradient);
}

}  // namespace ashlar::nn
