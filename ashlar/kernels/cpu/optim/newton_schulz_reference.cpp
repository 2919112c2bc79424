#include "ashlar/kernels/cpu/optim/newton_schulz_reference.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ashlar/kernels/cpu/gemm/reference.h"

namespace ashlar::kernels::cpu::newton_schulz {

template <typename T>
double sum_of_squares(const T* x, int64_t count) {
  constexpr int64_t kLanes = 16;
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[size_t(j)] += double(x[i + j]) * double(x[i + j]);
  for (; i < count; ++i) lanes[size_t(i % kLanes)] += double(x[i]) * double(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const double*, int64_t);

namespace {

class ReferenceMatrix {
 public:
  ReferenceMatrix(const Context& ctx, DType compute, DType dtype, int64_t M, int64_t N)
      : ctx_(ctx), compute_(compute), M_(M), N_(N) {
    const int64_t m = std::min(M, N);
    next_ = ctx.workspace->take(dtype, {M, N});
    gram_ = ctx.workspace->take(dtype, {m, m});
    poly_ = ctx.workspace->take(dtype, {m, m});
  }

  template <typename T>
  void run(const Tensor& x, int steps) const {
    const int64_t m = std::min(M_, N_), n = std::max(M_, N_);
    const T factor = T(1.0 / (std::sqrt(sum_of_squares(x.as<T>(), x.numel())) + kTiny));
    for (T& value : x.span<T>()) value *= factor;
    // Long side first: rows of X^T X are columns of X.
    const gemm::Strided short_long{x.data, x.dtype, M_ > N_ ? 1 : N_, M_ > N_ ? N_ : 1};
    const gemm::Strided next{next_.data, x.dtype, short_long.row_stride, short_long.col_stride};
    const gemm::Strided gram{gram_.data, x.dtype, m, 1}, poly{poly_.data, x.dtype, m, 1};
    for (int step = 0; step < steps; ++step) {
      product(m, m, n, short_long, short_long.transposed(), gram);
      product(m, m, m, gram, gram, poly);
      for (int64_t i = 0; i < m * m; ++i)
        poly_.as<T>()[i] = T(kB) * gram_.as<T>()[i] + T(kC) * poly_.as<T>()[i];
      product(m, n, m, poly, short_long, next);
      for (int64_t i = 0; i < x.numel(); ++i)
        x.as<T>()[i] = T(kA) * x.as<T>()[i] + next_.as<T>()[i];
    }
  }

 private:
  void product(int64_t M, int64_t N, int64_t K, const gemm::Strided& a, const gemm::Strided& b,
               const gemm::Strided& c) const {
    gemm::reference_product(*ctx_.threads, compute_, M, N, K, a, b, c, false);
  }
  const Context& ctx_;
  DType compute_;
  int64_t M_, N_;
  Tensor next_, gram_, poly_;
};

}  // namespace

void orthogonalize_reference(const Context& ctx, DType compute, const Tensor& x_GMN, int steps) {
  const ReferenceMatrix matrix(ctx, compute, x_GMN.dtype, x_GMN.shape[1], x_GMN.shape[2]);
  if (ctx.meta()) return;
  for (int64_t g = 0; g < x_GMN.shape[0]; ++g) {
    const Tensor x = x_GMN.slice(g, g + 1);
    x.dtype == DType::kF64 ? matrix.run<double>(x, steps) : matrix.run<float>(x, steps);
  }
}

}  // namespace ashlar::kernels::cpu::newton_schulz
