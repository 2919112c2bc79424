#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ashlar/kernels/cpu/cross_entropy_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// One token; the type of the logits sums.  gradient may be the row itself, or null.
template <typename T, typename G>
T cross_entropy_reference(const T* logits, int64_t V, int32_t target, T scale, G* gradient) {
  const T max = *std::max_element(logits, logits + V);
  T sum = 0;
  for (int64_t i = 0; i < V; ++i) sum += std::exp(logits[i] - max);
  const T logsumexp = max + std::log(sum), loss = logsumexp - logits[target];
  if (!gradient) return loss;
  for (int64_t i = 0; i < V; ++i)
    gradient[i] = G((std::exp(logits[i] - logsumexp) - T(i == target)) * scale);
  return loss;
}

template <typename G>
float cross_entropy_fast(const float* logits, int64_t V, int32_t target, float scale, G* gradient) {
  const float logit = logits[target];
  if (!gradient) return logsumexp_fast(logits, V) - logit;
  const float loss = softmax_fast(logits, V, scale, gradient) - logit;
  gradient[target] = G((std::exp(-loss) - 1.0f) * scale);
  return loss;
}

template <typename T, typename G>
void run(const Context& ctx, const CrossEntropy& x) {
  const int64_t V = x.logits_tV.shape[1];
  const T* logits = x.logits_tV.as<T>();
  const int32_t* targets = x.targets_t.as<int32_t>();
  T* loss = x.loss_t.as<T>();
  G* gradients = x.dlogits_tV ? x.dlogits_tV.as<G>() : nullptr;
  ctx.threads->run(x.logits_tV.shape[0], [&](int64_t t, int) {
    G* gradient = gradients ? gradients + t * V : nullptr;
    if (targets[t] < 0) {
      loss[t] = 0;
      if (gradient) std::fill_n(gradient, V, G(0.0f));
      return;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (!ctx.reference) {
        loss[t] = cross_entropy_fast(logits + t * V, V, targets[t], float(x.scale), gradient);
        return;
      }
    }
    loss[t] = cross_entropy_reference(logits + t * V, V, targets[t], T(x.scale), gradient);
  });
}

}  // namespace

void cross_entropy(const Context& ctx, const CrossEntropy& x) {
  if (ctx.meta()) return;
  const int64_t V = x.logits_tV.shape[1];
  for (const int32_t target : x.targets_t.span<const int32_t>())
    ASHLAR_ASSERT(target >= -1 && target < V);
  const bool bf16_gradient = x.dlogits_tV && x.dlogits_tV.dtype == DType::kBF16;
  if (x.logits_tV.dtype == DType::kF64)
    return bf16_gradient ? run<double, bf16>(ctx, x) : run<double, double>(ctx, x);
  return bf16_gradient ? run<float, bf16>(ctx, x) : run<float, float>(ctx, x);
}

// At most 64 MiB of fp32 logits, at most 256 tokens (logits of small vocabularies stay in cache),
// at least 64 so that the products keep their speed.
int64_t most_logits_rows(const Context&, int64_t num_classes) {
  const int64_t fitting = (int64_t{16} << 20) / num_classes / 64 * 64;
  return std::clamp<int64_t>(fitting, 64, 256);
}

}  // namespace ashlar::kernels::cpu
