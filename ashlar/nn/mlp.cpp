#include "ashlar/nn/mlp.h"

#include "ashlar/kernels/moe.h"

namespace ashlar::nn {

using kernels::Context;
using kernels::Matrix;

void MlpWeights::list(const LayerSpec& layer, int64_t width, Grain grain, StoredVisitor visit) {
  H = layer.model.hidden_size;
  F = layer.share.of(grain, width).size();
  const Section part{grain, width, 1, 0, width};
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

void mlp_inner(const Context& ctx, const Pass& pass, const MlpWeights& w, const MlpSaved& saved,
               const Tensor& m_TH) {
  linear_forward(ctx, pass.types.compute, Matrix::of(m_TH), w.gate_up.operand,
                 Matrix::of(saved.gate_up));
  swiglu_forward(ctx, {}, saved.gate_up, saved.act);
}

void mlp_output(const Context& ctx, const Pass& pass, const MlpWeights& w, const MlpSaved& saved,
                const Tensor& e_TH) {
  linear_forward(ctx, pass.types.compute, Matrix::of(saved.act), w.down.operand, Matrix::of(e_TH),
                 pass.add_to_output);
}

void mlp_backward_inputs(const Context& ctx, const Pass& pass, const MlpWeights& w,
                         const MlpSaved& saved, const Tensor& de_TH, const Tensor& dm_TH,
                         const Tensor& dgate_up) {
  const auto [stream, wide, activation, compute] = pass.types;
  const Arena::Scope inner(*ctx.workspace);
  const Tensor dact = ctx.workspace->take(activation, saved.act.shape);
  linear_backward_input(ctx, compute, Matrix::of(de_TH), w.down.operand, Matrix::of(dact));
  swiglu_backward(ctx, {}, dact, saved.gate_up, dgate_up);
  linear_backward_input(ctx, compute, Matrix::of(dgate_up), w.gate_up.operand, Matrix::of(dm_TH),
                        pass.add_to_output);
}

void mlp_backward_weights(const Context& ctx, const Pass& pass, const MlpWeights& w,
                          const MlpSaved& saved, const Tensor& m_TH, const Tensor& de_TH,
                          const Tensor& dgate_up) {
  weight_gradient(ctx, pass, Matrix::of(de_TH), Matrix::of(saved.act), w.down.gradient);
  weight_gradient(ctx, pass, Matrix::of(dgate_up), Matrix::of(m_TH), w.gate_up.gradient);
}

void MlpBranch::list(const LayerSpec& layer, StoredVisitor visit) {
  weights_.list(layer, std::get<MlpSpec>(layer.of_block().feed_forward).width, Grain::kWidth,
                visit);
}

void MlpBranch::lay_out(const SavedArenas& arenas, const Types& types, const PassShape& shape,
                        int slot) {
  saved_.set(slot, MlpSaved::make(arenas.block, weights_, types, shape.num_tokens));
}

void MlpBranch::forward(const Context& ctx, const Pass& pass, int, const Tensor& m_TH, const Carry&,
                        const Tensor& e_TH) {
  mlp_inner(ctx, pass, weights_, saved_[pass.slot], m_TH);
  mlp_output(ctx, pass, weights_, saved_[pass.slot], e_TH);
}

void MlpBranch::backward(const Context& ctx, const Pass& pass, int part, const BackwardTensors& t) {
  const MlpSaved& saved = saved_[pass.slot];
  const auto inputs = [&] {
    if (pass.recomputes()) mlp_inner(ctx, pass, weights_, saved, t.a);
    dgate_up_ = gradient_room(ctx, pass, pass.types.activation, saved.gate_up.shape);
    mlp_backward_inputs(ctx, pass, weights_, saved, t.d_o, t.da, dgate_up_);
  };
  run_part(part, inputs,
           [&] { mlp_backward_weights(ctx, pass, weights_, saved, t.a, t.d_o, dgate_up_); });
}

}  // namespace ashlar::nn
