// Second launches: sums over what the blocks of a first one left, in order.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"

namespace ashlar::device {
namespace {

constexpr int kThreads = 128;

ASHLAR_KERNEL(kThreads) sum_partials_kernel(SumPartials x) {
  const int64_t column = int64_t(block_index()) * block_size() + thread_index();
  if (column >= x.width) return;
  float sum = 0;
  for (int64_t row = 0; row < x.rows; ++row) sum = add(sum, x.partials[row * x.width + column]);
  x.to[column] = x.overwrites ? sum : add(x.to[column], sum);
}

}  // namespace

std::string launch(const SumPartials& x) {
  return run(sum_partials_kernel, {(x.width + kThreads - 1) / kThreads, kThreads, 0}, x);
}

}  // namespace ashlar::device
