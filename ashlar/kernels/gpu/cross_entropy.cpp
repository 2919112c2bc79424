#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

void cross_entropy(const Context& ctx, const CrossEntropy& x) {
  if (x.logits_tV.empty()) return;
  const int64_t V = x.logits_tV.shape[1];
  launch(ctx, device::CrossEntropy{.logits = floats(x.logits_tV),
                                   .targets = ints(x.targets_t),
                                   .scale = float(x.scale),
                                   .loss = floats(x.loss_t),
                                   .dlogits = elements(x.dlogits_tV),
                                   .rows = x.logits_tV.shape[0],
                                   .classes = V,
                                   .by_vectors = by_vectors(V, {x.logits_tV, x.dlogits_tV})});
}

// With 2,048 rows a product for the gradient of the head takes longer than reading and writing that
// gradient, to which each chunk adds.
int64_t most_logits_rows(const Context&, int64_t) {
  return 2048;
}

}  // namespace ashlar::kernels::gpu
