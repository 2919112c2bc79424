#include "ashlar/nn/init.h"

#include <cmath>
#include <numbers>

#include "ashlar/core/rng.h"

namespace ashlar::nn {
namespace {

using kernels::Context;

// Four normals of one Philox block (Box-Muller on 32-bit uniforms): cheaper than one block a
// number.
void normals_of_block(const Rng& rng, uint64_t block, float (&out)[4]) {
  const auto bits = rng.block(block);
  for (int pair = 0; pair < 2; ++pair) {
    const float u = (float(bits[size_t(2 * pair)] >> 8) + 0.5f) * 0x1p-24f;
    const float angle =
        float(bits[size_t(2 * pair + 1)] >> 8) * (0x1p-23f * std::numbers::pi_v<float>);
    const float radius = std::sqrt(-2.0f * std::log(u));
    out[2 * pair] = radius * std::cos(angle);
    out[2 * pair + 1] = radius * std::sin(angle);
  }
}

template <typename T>
void fill_normal(const Context& ctx, const Rng& rng, double std, const Tensor& tensor) {
  T* out = tensor.as<T>();
  const int64_t n = tensor.numel();
  parallel_for(*ctx.threads, (n + 3) / 4, 4096, [&](int64_t begin, int64_t end) {
    float four[4];
    for (int64_t block = begin; block < end; ++block) {
      normals_of_block(rng, uint64_t(block), four);
      for (int64_t i = 0; i < 4 && block * 4 + i < n; ++i)
        out[block * 4 + i] = T(four[i] * float(std));
    }
  });
}

template <typename T>
void fill_uniform(const Rng& rng, double bound, const Tensor& tensor) {
  T* out = tensor.as<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i)
    out[i] = T(float((2.0 * rng.uniform(uint64_t(i)) - 1.0) * bound));
}

template <typename T>
void fill_value(double value, const Tensor& tensor) {
  for (T& x : tensor.span<T>()) x = T(value);
}

template <typename T>
void fill(const Context& ctx, const ParameterInfo& info, const Tensor& tensor,
          const ModelSpec& spec, const InitSpec& init, uint64_t seed) {
  const Rng rng(seed, info.name);
  const auto normal = [&](double std) { fill_normal<T>(ctx, rng, std, tensor); };
  const double depth = 1.0 / std::sqrt(2.0 * double(spec.num_hidden_layers));
  const double depthwise_bound = 1.0 / std::sqrt(2.0);  // two taps, one channel in
  const double grouped_bound = 1.0 / std::sqrt(2.0 * double(spec.head_dim));
  const auto conv = [&](double bound, bool bias) {
    if (init.conv_uniform) return fill_uniform<T>(rng, bound, tensor);
    bias ? fill_value<T>(0.0, tensor) : normal(init.std);
  };
  switch (info.init) {
    case Init::kNormal:
      return normal(init.std);
    case Init::kOutput:
      return normal(init.std * (init.output_depth ? depth : 1.0));
    case Init::kConvDepthwise:
      return conv(depthwise_bound, false);
    case Init::kConvDepthwiseBias:
      return conv(depthwise_bound, true);
    case Init::kConvGrouped:
      return conv(grouped_bound, false);
    case Init::kConvGroupedBias:
      return conv(grouped_bound, true);
    case Init::kTemp:
      return fill_value<T>(init.temp, tensor);
    case Init::kOne:
      return fill_value<T>(1.0, tensor);
    case Init::kZero:
      return fill_value<T>(0.0, tensor);
    case Init::kBalancing:
      fill_value<T>(0.0, tensor);
      tensor.as<T>()[tensor.numel() - 1] = T(-1.0);
  }
}

}  // namespace

void initialize(const Context& ctx, const ModelWeights& weights, const ModelSpec& spec,
                const InitSpec& init, uint64_t seed) {
  if (ctx.meta()) return;
  weights.for_each(spec, [&](const ParameterInfo& info, const Tensor& tensor) {
    tensor.dtype == DType::kF64 ? fill<double>(ctx, info, tensor, spec, init, seed)
                                : fill<float>(ctx, info, tensor, spec, init, seed);
  });
}

}  // namespace ashlar::nn
