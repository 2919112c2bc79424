#include "ashlar/kernels/balance.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {

void balance_update(const Context& ctx, const BalanceUpdate& x) {
  const int64_t X = x.bias_X.numel();
  ASHLAR_ASSERT(is_stream(x.bias_X.dtype) && x.num_trained <= X && X <= x.counts_E1.numel());
  check_tensor(x.counts_E1, {x.counts_E1.numel()}, DType::kI64);
  for (const Tensor& moment : {x.first_X, x.second_X})
    check_tensor(moment, x.bias_X.shape, x.bias_X.dtype);
  const auto call = ctx.record("balance_update", x.bias_X.dtype,
                               {15 * X, x.counts_E1.bytes() + 6 * x.bias_X.bytes()});
  ctx.ops->balance_update(ctx, x);
}

}  // namespace ashlar::kernels
