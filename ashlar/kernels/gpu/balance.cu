// balance.h: one block, each class by itself but for the mean.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"

namespace ashlar::device {
namespace {

constexpr int kBalanceThreads = 256;

ASHLAR_KERNEL(kBalanceThreads) balance_update_kernel(BalanceUpdate x) {
  int64_t choices = 0;
  for (int64_t i = 0; i < x.num_counts; ++i) choices += x.counts[i];
  if (choices == 0) return;
  const double trained = double(x.num_trained), even = div(1.0, trained);
  const double rest1 = add(1.0, -x.beta1), rest2 = add(1.0, -x.beta2);
  for (int64_t i = thread_index(); i < x.num_trained; i += kBalanceThreads) {
    const double g = add(div(double(x.counts[i]), double(choices)), -even);
    x.first[i] = float(add(mul(x.beta1, double(x.first[i])), mul(rest1, g)));
    x.second[i] = float(add(mul(x.beta2, double(x.second[i])), mul(mul(rest2, g), g)));
    const double root = sqrt(div(double(x.second[i]), x.correction2));
    const double step = mul(x.lr, div(double(x.first[i]), x.correction1));
    x.bias[i] = float(add(double(x.bias[i]), -div(step, add(root, x.eps))));
  }
  if (!x.centered) return;
  sync_block();
  double mean = 0;
  for (int64_t i = 0; i < x.num_trained; ++i) mean = add(mean, div(double(x.bias[i]), trained));
  sync_block();
  for (int64_t i = thread_index(); i < x.num_trained; i += kBalanceThreads)
    x.bias[i] = float(add(double(x.bias[i]), -mean));
}

}  // namespace

std::string launch(const BalanceUpdate& x) {
  return run(balance_update_kernel, {1, kBalanceThreads, 0}, x);
}

}  // namespace ashlar::device
