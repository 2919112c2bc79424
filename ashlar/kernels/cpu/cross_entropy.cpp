#include "ashlar/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "ashlar/kernels/cpu/cross_entropy_args.h"

namespace ashlar::kernels {
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

struct Call {
  const Context& ctx;
  const Tensor &logits, &targets;
  double scale;
  const Tensor &loss, &gradient;
};

template <typename T, typename G>
void run(const Call& call) {
  const int64_t V = call.logits.shape[1];
  const T* logits = call.logits.as<T>();
  const int32_t* targets = call.targets.as<int32_t>();
  T* loss = call.loss.as<T>();
  G* gradients = call.gradient ? call.gradient.as<G>() : nullptr;
  call.ctx.threads->run(call.logits.shape[0], [&](int64_t t, int) {
    G* gradient = gradients ? gradients + t * V : nullptr;
    if (targets[t] < 0) {
      loss[t] = 0;
      if (gradient) std::fill_n(gradient, V, G(0.0f));
      return;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (!call.ctx.reference) {
        loss[t] = cross_entropy_fast(logits + t * V, V, targets[t], float(call.scale), gradient);
        return;
      }
    }
    loss[t] = cross_entropy_reference(logits + t * V, V, targets[t], T(call.scale), gradient);
  });
}

void check(const Call& call) {
  const int64_t t = call.logits.shape[0];
  const DType dtype = call.logits.dtype, gradient = call.gradient.dtype;
  ASHLAR_ASSERT(call.logits.shape.ndim() == 2 && call.logits.shape[1] > 0);
  ASHLAR_ASSERT(call.targets.dtype == DType::kI32 && call.targets.numel() == t);
  ASHLAR_ASSERT((dtype == DType::kF32 || dtype == DType::kF64) && call.loss.dtype == dtype);
  ASHLAR_ASSERT(call.loss.numel() == t);
  if (!call.gradient) return;
  ASHLAR_ASSERT(call.gradient.numel() == call.logits.numel());
  ASHLAR_ASSERT(gradient == dtype || gradient == DType::kBF16);
  ASHLAR_ASSERT(call.ctx.meta() || gradient == dtype || call.gradient.data != call.logits.data);
}

}  // namespace

void cross_entropy(const Context& ctx, const Tensor& logits_tV, const Tensor& targets_t,
                   double scale, const Tensor& loss_t, const Tensor& dlogits_tV) {
  const Call call{ctx, logits_tV, targets_t, scale, loss_t, dlogits_tV};
  check(call);
  const int64_t reads = dlogits_tV ? 2 : 1, V = logits_tV.shape[1];
  ctx.record(
      "cross_entropy", logits_tV.shape,
      {6 * logits_tV.numel(), reads * logits_tV.bytes() + (dlogits_tV ? dlogits_tV.bytes() : 0)});
  if (ctx.meta()) return;
  for (const int32_t target : targets_t.span<const int32_t>())
    ASHLAR_REQUIRE(target >= -1 && target < V, kData,
                   "target {} is outside the vocabulary; expected -1 (no loss) or a token below {}",
                   target, V);
  const bool bf16_gradient = dlogits_tV && dlogits_tV.dtype == DType::kBF16;
  if (logits_tV.dtype == DType::kF64)
    return bf16_gradient ? run<double, bf16>(call) : run<double, double>(call);
  return bf16_gradient ? run<float, bf16>(call) : run<float, float>(call);
}

}  // namespace ashlar::kernels
