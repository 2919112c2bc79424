#include <cmath>

#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
void balance_all(const BalanceUpdate& x) {
  const auto& [lr, beta1, beta2, eps, c1, c2] = x.rates;
  const std::span<const int64_t> counts = x.counts_E1.span<const int64_t>();
  const int64_t trained = x.num_trained;
  T *b = x.bias_X.as<T>(), *m = x.first_X.as<T>(), *v = x.second_X.as<T>();
  int64_t choices = 0;
  for (const int64_t count : counts) choices += count;
  if (choices == 0) return;
  double mean = 0.0;
  for (int64_t e = 0; e < trained; ++e) {
    const double g = double(counts[size_t(e)]) / double(choices) - 1.0 / double(trained);
    m[e] = T(beta1 * double(m[e]) + (1.0 - beta1) * g);
    v[e] = T(beta2 * double(v[e]) + (1.0 - beta2) * g * g);
    b[e] = T(double(b[e]) - lr * (double(m[e]) / c1) / (std::sqrt(double(v[e]) / c2) + eps));
    mean += double(b[e]) / double(trained);
  }
  if (!x.centered) return;
  for (int64_t e = 0; e < trained; ++e) b[e] = T(double(b[e]) - mean);
}

}  // namespace

void balance_update(const Context& ctx, const BalanceUpdate& x) {
  if (ctx.meta()) return;
  x.bias_X.dtype == DType::kF64 ? balance_all<double>(x) : balance_all<float>(x);
}

}  // namespace ashlar::kernels::cpu
