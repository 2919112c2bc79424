#include <cmath>
#include <limits>

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels {
namespace {

// What the two parts of one row count.  A part without keys counts nothing.
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
void merge(const Context& ctx, int64_t D, const Tensor& out_a, const Tensor& lse_a,
           const Tensor& out_b, const Tensor& lse_b, const Tensor& out, const Tensor& lse) {
  for_tokens(ctx, lse.numel(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Weights<A> w = weights(lse_a.as<A>()[i], lse_b.as<A>()[i]);
      const P* a = out_a.as<P>() + i * D;
      const Q* b = out_b.as<Q>() + i * D;
      R* to = out.as<R>() + i * D;
      if (w.b == 0) {
        for (int64_t d = 0; d < D; ++d) to[d] = R(A(a[d]));
      } else if (w.a == 0) {
        for (int64_t d = 0; d < D; ++d) to[d] = R(A(b[d]));
      } else {
        for (int64_t d = 0; d < D; ++d) to[d] = R(w.a * A(a[d]) + w.b * A(b[d]));
      }
      lse.as<A>()[i] = w.lse;
    }
  });
}

using Merge = void (*)(const Context&, int64_t, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&, const Tensor&, const Tensor&);

Merge merge_of(DType a, DType b, DType out) {
  if (b == DType::kF64) return merge<double, double, double, double>;
  if (b == DType::kF32) return merge<float, float, float, float>;
  const bool sum_a = a == DType::kF32, sum_out = out == DType::kF32;
  if (sum_a) return sum_out ? merge<float, float, bf16, float> : merge<float, float, bf16, bf16>;
  return sum_out ? merge<float, bf16, bf16, float> : merge<float, bf16, bf16, bf16>;
}

}  // namespace

void attention_merge(const Context& ctx, int64_t D, const Tensor& out_a, const Tensor& lse_a_TN,
                     const Tensor& out_b, const Tensor& lse_b_TN, const Tensor& out,
                     const Tensor& lse_TN) {
  const int64_t rows = lse_TN.numel();
  const DType sum = lse_TN.dtype;
  ASHLAR_ASSERT(D > 0 && lse_TN.shape.ndim() == 2 && is_real(out_b.dtype));
  ASHLAR_ASSERT(sum == (out_b.dtype == DType::kF64 ? DType::kF64 : DType::kF32));
  for (const Tensor* lse : {&lse_a_TN, &lse_b_TN})
    ASHLAR_ASSERT(lse->numel() == rows && lse->dtype == sum);
  for (const Tensor* part : {&out_a, &out_b, &out})
    ASHLAR_ASSERT(part->numel() == rows * D && (part->dtype == out_b.dtype || part->dtype == sum));
  ctx.record("attention_merge", {lse_TN.shape[0], lse_TN.shape[1], D},
             {3 * rows * D, bytes_of({out_a, lse_a_TN, out_b, lse_b_TN, out, lse_TN})});
  if (ctx.meta()) return;
  merge_of(out_a.dtype, out_b.dtype, out.dtype)(ctx, D, out_a, lse_a_TN, out_b, lse_b_TN, out,
                                                lse_TN);
}

}  // namespace ashlar::kernels
