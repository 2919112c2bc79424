#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

void balance_update(const Context& ctx, const BalanceUpdate& x) {
  launch(ctx, device::BalanceUpdate{.lr = x.rates.lr,
                                    .beta1 = x.rates.beta1,
                                    .beta2 = x.rates.beta2,
                                    .eps = x.rates.eps,
                                    .correction1 = x.rates.correction1,
                                    .correction2 = x.rates.correction2,
                                    .counts = wide_ints(x.counts_E1),
                                    .bias = floats(x.bias_X),
                                    .first = floats(x.first_X),
                                    .second = floats(x.second_X),
                                    .num_counts = x.counts_E1.numel(),
                                    .num_trained = x.num_trained,
                                    .centered = x.centered});
}

}  // namespace ashlar::kernels::gpu
