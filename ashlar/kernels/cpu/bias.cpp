#include "ashlar/kernels/bias.h"

#include "ashlar/kernels/cpu/bias_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
void bias_rows(const BiasArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t n = 0; n < x.N; ++n) x.y.add(t * x.stride + n, x.b[n]);
}

template <typename T>
void bias_gradient_rows(const BiasGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t n = 0; n < x.N; ++n) partial[n] += x.dy[t * x.stride + n];
}

}  // namespace

void bias_forward(const Context& ctx, const Tensor& b, const Matrix& y) {
  with_real(b.dtype, [&]<typename Real>(Real) {
    const BiasArgs<Real> args{.N = y.cols, .stride = y.stride, .b = b, .y = y};
    run_rows(ctx, y.rows, args, bias_rows_fast, bias_rows<Real>);
  });
}

void bias_backward(const Context& ctx, const Matrix& dy, const Tensor& db) {
  with_real(db.dtype, [&]<typename Real>(Real) {
    const BiasGradientArgs<Real> args{.N = dy.cols, .stride = dy.stride, .dy = dy};
    run_summing_rows(ctx, dy.rows, {db}, args, bias_gradient_rows_fast, bias_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
