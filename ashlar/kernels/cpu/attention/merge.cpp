#include <cmath>
#include <limits>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// The weights of the two parts of one row.  A part without keys has weight 0.
template <typename A>
struct Weights {
  A a, b, lse;
};
template <typename A>
Weights<A> weights(A lse_a, A lse_b) {
  constexpr A kNoKey = -std::numeric_limits<A>::infinity();
  if (lse_b == kNoKey) return {1, 0, lse_a};
  if (lse_a == kNoKey) return {0, 1, lse_b};
  const A max = lse_a > lse_b ? lse_a : lse_b;  // a NaN goes through
  const A a = std::exp(lse_a - max), b = std::exp(lse_b - max), sum = a + b;
  return {a / sum, b / sum, max + std::log(sum)};
}

// A: type of the statistics; P, Q, R: of out_a, out_b and out.
template <typename A, typename P, typename Q, typename R>
void merge(const Context& ctx, const AttentionMerge& x) {
  const int64_t V = x.V;
  for_tokens(ctx, x.lse_TN.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Weights<A> w = weights(x.lse_a_TN.as<A>()[i], x.lse_b_TN.as<A>()[i]);
      const P* a = x.out_a.as<P>() + i * V;
      const Q* b = x.out_b.as<Q>() + i * V;
      R* to = x.out.as<R>() + i * V;
      if (w.b == 0) {
        for (int64_t d = 0; d < V; ++d) to[d] = R(A(a[d]));
      } else if (w.a == 0) {
        for (int64_t d = 0; d < V; ++d) to[d] = R(A(b[d]));
      } else {
        for (int64_t d = 0; d < V; ++d) to[d] = R(w.a * A(a[d]) + w.b * A(b[d]));
      }
      x.lse_TN.as<A>()[i] = w.lse;
    }
  });
}

using Merge = void (*)(const Context&, const AttentionMerge&);

Merge merge_of(DType a, DType b, DType out) {
  if (b == DType::kF64) return merge<double, double, double, double>;
  if (b == DType::kF32) return merge<float, float, float, float>;
  const bool sum_a = a == DType::kF32, sum_out = out == DType::kF32;
  if (sum_a) return sum_out ? merge<float, float, bf16, float> : merge<float, float, bf16, bf16>;
  return sum_out ? merge<float, bf16, bf16, float> : merge<float, bf16, bf16, bf16>;
}

}  // namespace

void attention_merge(const Context& ctx, const AttentionMerge& x) {
  merge_of(x.out_a.dtype, x.out_b.dtype, x.out.dtype)(ctx, x);
}

}  // namespace ashlar::kernels::cpu
