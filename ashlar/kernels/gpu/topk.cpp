#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

void topk_forward(const Context& ctx, const TopkForward& x) {
  if (x.p_TE.empty()) return;
  launch(ctx, device::TopkForward{.choose_by_logits = x.rule.choose_by_logits,
                                  .renormalize = x.rule.renormalize,
                                  .scale = float(x.rule.scale),
                                  .logits = floats(x.logits_TE),
                                  .bias = floats(x.bias_E),
                                  .p = floats(x.p_TE),
                                  .lse = floats(x.lse_T),
                                  .weight = floats(x.weight_Tk),
                                  .expert = ints(x.expert_Tk),
                                  .tokens = x.p_TE.shape[0],
                                  .classes = x.p_TE.shape[1],
                                  .k = x.expert_Tk.shape[1]});
}

void row_loads(const Context& ctx, const Tensor& expert_Tk, const Tensor& loads_BE) {
  const int64_t B = loads_BE.shape[0], E = loads_BE.shape[1], choices = expert_Tk.numel() / B;
  const Arena::Scope scope(*ctx.workspace);
  const Tensor counts =
      ctx.workspace->take(DType::kI32, {device::num_choice_counts(B, choices, E)});
  launch(ctx, device::RowLoads{.expert = ints(expert_Tk),
                               .rows = B,
                               .choices = choices,
                               .classes = E,
                               .counts = ints(counts),
                               .loads = floats(loads_BE)});
}

void topk_backward(const Context& ctx, const TopkBackward& x) {
  const int64_t T = x.p_TE.shape[0], k = x.expert_Tk.shape[1];
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials_P2 = ctx.workspace->take(DType::kF32, {num_partials(T), 2});
  if (T == 0) return;
  launch(ctx, device::TopkBackward{.renormalize = x.rule.renormalize,
                                   .scale = float(x.rule.scale),
                                   .balance_scale = float(x.balance_scale * double(k)),
                                   .z_scale = float(x.z_scale),
                                   .dweight = floats(x.dweight_Tk),
                                   .p = floats(x.p_TE),
                                   .lse = floats(x.lse_T),
                                   .weight = floats(x.weight_Tk),
                                   .loads = floats(x.loads_BE),
                                   .expert = ints(x.expert_Tk),
                                   .dlogits = elements(x.dlogits_TE),
                                   .partials = floats(partials_P2),
                                   .tokens = T,
                                   .classes = x.p_TE.shape[1],
                                   .k = k,
                                   .tokens_per_row = x.loads_BE ? T / x.loads_BE.shape[0] : T});
  add_partials(ctx, partials_P2, x.losses_2);
}

}  // namespace ashlar::kernels::gpu
