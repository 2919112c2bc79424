#include "ashlar/kernels/bias.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {

void bias_forward(const Context& ctx, const Tensor& b, const Matrix& y) {
  check_tensor(b, {y.cols}, b.dtype);
  ASHLAR_ASSERT(is_stream(b.dtype) && is_real(y.dtype));
  const auto call =
      ctx.record("bias_forward", b.dtype, {y.rows * y.cols, 2 * bytes_of(y) + b.bytes()});
  ctx.ops->bias_forward(ctx, b, y);
}

void bias_backward(const Context& ctx, const Matrix& dy, const Tensor& db) {
  check_tensor(db, {dy.cols}, db.dtype);
  ASHLAR_ASSERT(is_stream(db.dtype) && is_real(dy.dtype));
  const auto call =
      ctx.record("bias_backward", db.dtype, {dy.rows * dy.cols, bytes_of(dy) + db.bytes()});
  ctx.ops->bias_backward(ctx, dy, db);
}

}  // namespace ashlar::kernels
