#include "ashlar/nn/mlp.h"

#include "ashlar/kernels/moe.h"
#include "ashlar/nn/lora.h"

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
  adapted_forward(ctx, pass, Matrix::of(m_TH), w.gate_up, Matrix::of(saved.gate_up));
  swiglu_forward(ctx, {}, saved.gate_up, saved.act);
}

void mlp_output(const Context& ctx, const Pass& pass, const MlpWeights& w, const MlpSaved& saved,
                const Tensor& e_TH) {
  adapted_forward(ctx, pass, Matrix::of(saved.act), w.down, Matrix::of(e_TH), pass.add_to_output);
}

void mlp_backward_inputs(const Context& ctx, const Pass& pass, const MlpWeights& w,
                         const MlpSaved& saved, const Tensor& m_TH, const Tensor& de_TH,
                         const Tensor& dm_TH, const Tensor& dgate_up) {
  const Arena::Scope inner(*ctx.workspace);
  const Tensor dact = ctx.workspace->take(pass.types.activation, saved.act.shape);
  adapted_backward_input(ctx, pass, Matrix::of(de_TH), w.down, Matrix::of(saved.act),
                         Matrix::of(dact));
  swiglu_backward(ctx, {}, dact, saved.gate_up, dgate_up);
  adapted_backward_input(ctx, pass, Matrix::of(dgate_up), w.gate_up, Matrix::of(m_TH),
                         Matrix::of(dm_TH), pass.add_to_output);
}

void mlp_backward_weights(const Context& ctx, const Pass& pass, const MlpWeights& w,
                          const MlpSaved& saved, const Tensor& m_TH, const Tensor& de_TH,
                          const Tensor& dgate_up) {
  adapted_backward_weight(ctx, pass, Matrix::of(de_TH), Matrix::of(saved.act), w.down);
  adapted_backward_weight(ctx, pass, Matrix::of(dgate_up), Matrix::of(m_TH), w.gate_up);
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
    mlp_backward_inputs(ctx, pass, weights_, saved, t.a, t.d_o, t.da, dgate_up_);
  };
  run_part(part, inputs,
           [&] { mlp_backward_weights(ctx, pass, weights_, saved, t.a, t.d_o, dgate_up_); });
}

}  // namespace ashlar::nn
