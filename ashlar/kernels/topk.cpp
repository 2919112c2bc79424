#include "ashlar/kernels/topk.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {

void topk_forward(const Context& ctx, const TopkForward& x) {
  const int64_t T = x.logits_TE.shape[0], E = x.logits_TE.shape[1], k = x.expert_Tk.shape[1];
  const DType stream = x.logits_TE.dtype;
  ASHLAR_ASSERT(is_stream(stream) && k >= 1 && k <= E);
  check_tensor(x.p_TE, x.logits_TE.shape, stream);
  check_tensor(x.lse_T, {T}, stream);
  check_tensor(x.expert_Tk, {T, k}, DType::kI32);
  check_tensor(x.weight_Tk, {T, k}, stream);
  if (x.bias_E) check_tensor(x.bias_E, {E}, stream);
  const auto call = ctx.record(
      "topk_forward", stream,
      {6 * T * E, bytes_of({x.logits_TE, x.bias_E, x.p_TE, x.lse_T, x.expert_Tk, x.weight_Tk})});
  ctx.ops->topk_forward(ctx, x);
}

void row_loads(const Context& ctx, const Tensor& expert_Tk, const Tensor& loads_BE) {
  ASHLAR_ASSERT(is_stream(loads_BE.dtype) && loads_BE.shape.ndim() == 2 &&
                expert_Tk.shape[0] % loads_BE.shape[0] == 0);
  check_tensor(expert_Tk, expert_Tk.shape, DType::kI32);
  const auto call =
      ctx.record("row_loads", loads_BE.dtype, {expert_Tk.numel(), bytes_of({expert_Tk, loads_BE})});
  ctx.ops->row_loads(ctx, expert_Tk, loads_BE);
}

void topk_backward(const Context& ctx, const TopkBackward& x) {
  const int64_t T = x.p_TE.shape[0], E = x.p_TE.shape[1], k = x.expert_Tk.shape[1];
  const DType stream = x.p_TE.dtype;
  ASHLAR_ASSERT(is_stream(stream));
  check_tensor(x.lse_T, {T}, stream);
  check_tensor(x.expert_Tk, {T, k}, DType::kI32);
  for (const Tensor* t : {&x.dweight_Tk, &x.weight_Tk}) check_tensor(*t, {T, k}, stream);
  if (x.loads_BE) {
    check_tensor(x.loads_BE, {x.loads_BE.shape[0], E}, stream);
    ASHLAR_ASSERT(T % x.loads_BE.shape[0] == 0);
  }
  check_real(x.dlogits_TE, x.p_TE.shape);
  check_tensor(x.losses_2, {2}, stream);
  const auto call = ctx.record("topk_backward", stream,
                               {6 * T * E, bytes_of({x.dweight_Tk, x.p_TE, x.lse_T, x.expert_Tk,
                                                     x.weight_Tk, x.loads_BE, x.dlogits_TE})});
  ctx.ops->topk_backward(ctx, x);
}

}  // namespace ashlar::kernels
