#include "ashlar/kernels/cross_entropy.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check(const CrossEntropy& x) {
  const int64_t t = x.logits_tV.shape[0];
  const DType dtype = x.logits_tV.dtype, gradient = x.dlogits_tV.dtype;
  ASHLAR_ASSERT(x.logits_tV.shape.ndim() == 2 && x.logits_tV.shape[1] > 0 && is_stream(dtype));
  ASHLAR_ASSERT(x.targets_t.dtype == DType::kI32 && x.targets_t.numel() == t);
  ASHLAR_ASSERT(x.loss_t.dtype == dtype && x.loss_t.numel() == t);
  if (!x.dlogits_tV) return;
  ASHLAR_ASSERT(x.dlogits_tV.numel() == x.logits_tV.numel());
  const bool in_place = x.logits_tV.data && x.dlogits_tV.data == x.logits_tV.data;
  ASHLAR_ASSERT(gradient == dtype || (gradient == DType::kBF16 && !in_place));
}

}  // namespace

void cross_entropy(const Context& ctx, const CrossEntropy& x) {
  check(x);
  const int64_t reads = x.dlogits_tV ? 2 : 1;
  const auto call =
      ctx.record("cross_entropy", x.logits_tV.dtype,
                 {6 * x.logits_tV.numel(), reads * x.logits_tV.bytes() + x.dlogits_tV.bytes()});
  ctx.ops->cross_entropy(ctx, x);
}

int64_t most_logits_rows(const Context& ctx, int64_t num_classes) {
  return ctx.ops->most_logits_rows(ctx, num_classes);
}

}  // namespace ashlar::kernels
