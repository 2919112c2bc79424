#include "ashlar/nn/linear_router.h"

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/moe.h"
#include "ashlar/nn/lora.h"

namespace ashlar::nn {

using kernels::Context;
using kernels::Matrix;

void LinearRouterWeights::list(const LayerSpec& layer, StoredVisitor visit) {
  const auto& moe = std::get<MoeSpec>(layer.of_block().feed_forward);
  const auto& router = std::get<LinearRouterSpec>(moe.router);
  H = layer.model.hidden_size, E = moe.num_experts, k = router.num_chosen;
  rule = {.choose_by_logits = !router.pre_softmax,
          .renormalize = router.renormalize || !router.pre_softmax,
          .scale = router.scale};
  // AdamW, not Muon: the matrix is a classifier, not a map between features.
  visit({.weight = &w,
         .logical = {{.name = layer.prefix + "weight",
                      .shape = {E, H},
                      .init = layer.normal(),
                      .kind = OptimizerKind::kAdamW,
                      .decay = true}},
         .operand_shape = {E, H}});
  if (router.expert_bias)
    visit({.weight = &bias,
           .logical = {{.name = layer.prefix + "e_score_correction_bias",
                        .shape = {E},
                        .init = LayerSpec::constant(0.0),
                        .buffer = true}}});
}

void LinearRouter::lay_out(const SavedArenas& arenas, const Types& types, int64_t num_tokens,
                           int slot) {
  const Shape Tk{num_tokens, weights_.k};
  LinearRouterSaved s;
  s.p = arenas.block.take(types.wide, {num_tokens, weights_.E});
  s.lse = arenas.block.take(types.wide, {num_tokens});
  s.expert = arenas.lasting.take(DType::kI32, Tk);
  s.weight = arenas.block.take(types.wide, Tk);
  s.losses = arenas.lasting.take(types.wide, {2});
  saved_.set(slot, s);
}

void LinearRouter::forward(const Context& ctx, const Pass& pass, const Tensor& m_TH,
                           const Carry&) const {
  const LinearRouterSaved& saved = saved_[pass.slot];
  const Arena::Scope scope(*ctx.workspace);
  const Tensor logits = ctx.workspace->take(pass.types.wide, saved.p.shape);
  adapted_forward(ctx, pass, Matrix::of(m_TH), weights_.w, Matrix::of(logits));
  topk_forward(ctx, {.rule = weights_.rule,
                     .logits_TE = logits,
                     .bias_E = weights_.bias.value,
                     .p_TE = saved.p,
                     .lse_T = saved.lse,
                     .expert_Tk = saved.expert,
                     .weight_Tk = saved.weight});
  leave_out_padding(ctx, pass.sequence, saved.expert);
}

// The number of choices of each expert in whole rows of the micro-batch, over all ranks.
Tensor LinearRouter::loads_of_rows(const Context& ctx, const Pass& pass) const {
  if (pass.losses.aux_loss == 0.0) return {};
  const Tensor loads = ctx.workspace->take(pass.types.wide, {pass.losses.num_rows, weights_.E});
  row_loads(ctx, saved_[pass.slot].expert, loads);
  pass.exchanges.tokens.rows->sum(loads);
  return loads;
}

void LinearRouter::backward(const Context& ctx, const Pass& pass, const Tensor& m_TH, const Carry&,
                            const Tensor& dweight_Tk, const Tensor& dm_TH) const {
  const LinearRouterSaved& saved = saved_[pass.slot];
  const Arena::Scope scope(*ctx.workspace);
  const Tensor dlogits = gradient_room(ctx, pass, pass.types.activation, saved.p.shape);
  fill(ctx, saved.losses, 0.0);
  const StepLosses& losses = pass.losses;
  const double share = losses.token_share;
  topk_backward(ctx, {.rule = weights_.rule,
                      .dweight_Tk = dweight_Tk,
                      .p_TE = saved.p,
                      .lse_T = saved.lse,
                      .expert_Tk = saved.expert,
                      .weight_Tk = saved.weight,
                      .loads_BE = loads_of_rows(ctx, pass),
                      .balance_scale = losses.aux_loss * double(weights_.E) * share,
                      .z_scale = losses.z_loss * share,
                      .dlogits_TE = dlogits,
                      .losses_2 = saved.losses});
  adapted_backward_input(ctx, pass, Matrix::of(dlogits), weights_.w, Matrix::of(m_TH),
                         Matrix::of(dm_TH));
  adapted_backward_weight(ctx, pass, Matrix::of(dlogits), Matrix::of(m_TH), weights_.w);
}

}  // namespace ashlar::nn
