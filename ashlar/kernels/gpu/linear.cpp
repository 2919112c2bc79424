// linear.h: dense products by the library of the device's vendor.  Operands that are of another
// type than the product's are converted in the workspace; so are the results of products in fp32
// that are to be bf16, which no library writes.
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

// A matrix as an operand; transposed: the product reads its columns as rows.
struct Factor {
  Matrix matrix;
  bool transposed = false;
  int64_t rows() const { return transposed ? matrix.cols : matrix.rows; }
  int64_t cols() const { return transposed ? matrix.rows : matrix.cols; }
};

Factor in_type(const Context& ctx, const Factor& from, DType type) {
  if (from.matrix.dtype == type) return from;
  const Matrix to = Matrix::of(ctx.workspace->take(type, {from.matrix.rows, from.matrix.cols}));
  gpu::copy(ctx, from.matrix, to);
  return {to, from.transposed};
}

blas::Stack stack_of(const Matrix& m) {
  return {m.data, m.dtype, m.stride, 0};
}

// c = a b (+ c), by operands in `compute`.
void multiply(const Context& ctx, DType compute, const Factor& a, const Factor& b, const Matrix& c,
              bool accumulate) {
  ASHLAR_ASSERT(compute == DType::kF32 || compute == DType::kBF16);
  const Arena::Scope scope(*ctx.workspace);
  const Factor left = in_type(ctx, a, compute), right = in_type(ctx, b, compute);
  const bool direct = compute == DType::kBF16 || c.dtype == DType::kF32;
  const Matrix d = direct ? c : Matrix::of(ctx.workspace->take(DType::kF32, {c.rows, c.cols}));
  if (!direct && accumulate) gpu::copy(ctx, c, d);
  const Tensor workspace = ctx.workspace->take(DType::kU8, {blas::workspace_bytes(ctx)});
  blas::multiply(ctx,
                 {.rows = a.rows(),
                  .cols = b.cols(),
                  .depth = a.cols(),
                  .a = stack_of(left.matrix),
                  .b = stack_of(right.matrix),
                  .c = stack_of(d),
                  .d = stack_of(d),
                  .transposes_a = a.transposed,
                  .transposes_b = b.transposed,
                  .beta = accumulate ? 1.0f : 0.0f},
                 workspace);
  if (!direct) gpu::copy(ctx, d, c);
}

}  // namespace

void linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                    const Matrix& y, bool accumulate) {
  if (x.rows == 0) return;
  multiply(ctx, compute, {x}, {Matrix::of(weights_of(w, compute)), true}, y, accumulate);
}

void linear_backward_input(const Context& ctx, DType compute, const Matrix& dy, const Operand& w,
                           const Matrix& dx, bool accumulate) {
  if (dy.rows == 0) return;
  multiply(ctx, compute, {dy}, {Matrix::of(weights_of(w, compute))}, dx, accumulate);
}

void linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy, const Matrix& x,
                            const Tensor& dw, bool accumulate) {
  if (x.rows > 0) return multiply(ctx, compute, {dy, true}, {x}, Matrix::of(dw), accumulate);
  if (!accumulate) gpu::fill(ctx, Matrix::of(dw), 0);
}

}  // namespace ashlar::kernels::gpu
