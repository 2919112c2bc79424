// cross_entropy.h: a block has a row of logits, which it reads twice: for the largest one and the
// sum of exponentials together, and for the gradient.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/math.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

constexpr int kClassThreads = 512, kClassGroups = kClassThreads / kLanes;

// log of e^x summed = max + log(sum), of the sum of e^(x - max).  An empty one has the least finite
// number as its max, so that differences from it are no NaN.
struct LogSum {
  float max = -3.40282347e38f, sum = 0;
};
ASHLAR_DEVICE void raise(LogSum& x, float max) {
  if (x.max > max) return;
  x.sum = mul(x.sum, exp(add(x.max, -max)));
  x.max = max;
}

// Calls use(pack, first) for the thread's packs of a row, from class number `first` on.
template <typename Use>
ASHLAR_DEVICE void for_classes(const CrossEntropy& x, Use use) {
  const int64_t begin = int64_t(block_index()) * x.classes;
  for (int64_t c = thread_index() * kPack; c < x.classes; c += kClassThreads * kPack)
    use(load_pack(x.logits, begin + c, {x.classes - c, x.by_vectors}), c);
}

ASHLAR_DEVICE void add_classes(LogSum& x, const Pack& logits, int64_t count) {
  float max = logits.at[0];
#pragma unroll
  for (int i = 1; i < kPack; ++i)
    if (i < count && logits.at[i] > max) max = logits.at[i];
  raise(x, max);
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (i < count) x.sum = add(x.sum, exp(add(logits.at[i], -x.max)));
}

// Over the block: over lanes, then over their groups in order.
ASHLAR_DEVICE float log_of_sum(LogSum x, LogSum* room) {
  raise(x, lane_max(x.max));
  x.sum = lane_sum(x.sum);
  if (thread_index() % kLanes == 0) room[thread_index() / kLanes] = x;
  sync_block();
  LogSum all = room[0];
  for (int i = 1; i < kClassGroups; ++i) {
    LogSum other = room[i];
    raise(all, other.max);
    raise(other, all.max);
    all.sum = add(all.sum, other.sum);
  }
  return add(all.max, log(all.sum));
}

ASHLAR_DEVICE void store_gradient(const CrossEntropy& x, const Pack& gradient, int64_t first) {
  store_pack(gradient, x.dlogits, int64_t(block_index()) * x.classes + first,
             {x.classes - first, x.by_vectors});
}

ASHLAR_KERNEL(kClassThreads) cross_entropy_kernel(CrossEntropy x) {
  const int64_t row = block_index(), target = x.targets[row];
  if (target < 0) {
    if (thread_index() == 0) x.loss[row] = 0.0f;
    if (x.dlogits.data) for_classes(x, [&](const Pack&, int64_t c) { store_gradient(x, {}, c); });
    return;
  }
  // Read before the gradient may take its place.
  const float logit = x.logits[row * x.classes + target];
  LogSum own;
  for_classes(x, [&](const Pack& logits, int64_t c) { add_classes(own, logits, x.classes - c); });
  const float log_sum = log_of_sum(own, (LogSum*)shared_memory());
  if (thread_index() == 0) x.loss[row] = add(log_sum, -logit);
  if (!x.dlogits.data) return;
  for_classes(x, [&](const Pack& logits, int64_t c) {
    Pack gradient;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float share = exp(add(logits.at[i], -log_sum));
      gradient.at[i] = mul(c + i == target ? add(share, -1.0f) : share, x.scale);
    }
    store_gradient(x, gradient, c);
  });
}

}  // namespace

std::string launch(const CrossEntropy& x) {
  return run(cross_entropy_kernel, {x.rows, kClassThreads, kClassGroups * int(sizeof(LogSum))}, x);
}

}  // namespace ashlar::device
