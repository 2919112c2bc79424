#include "ashlar/kernels/short_conv.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// Checks x, its halo, W and y; or their gradients.
void check(const Sequence& sequence, const Matrix& x, const Tensor& halo, const Tensor& w,
           const Tensor& y) {
  const DType stream = w.dtype;
  const int64_t T = sequence.num_tokens(), C = x.cols;
  ASHLAR_ASSERT(x.rows == T && is_real(x.dtype) && is_stream(stream));
  ASHLAR_ASSERT(w.shape.ndim() == 3 && 2 <= w.shape[2] && w.shape[2] <= 8);
  check_tensor(w, {C, 1, w.shape[2]}, stream);
  check_tensor(halo, {sequence.num_halos(), w.shape[2] - 1, C}, stream);
  check_real(y, {T, C});
}

}  // namespace

void short_conv_forward(const Context& ctx, const ShortConvForward& x) {
  check(x.sequence, x.x_TC, x.halo, x.w_C1W, x.y_TC);
  const int64_t flop = 2 * x.w_C1W.shape[2] + 4;
  const auto call =
      ctx.record("short_conv_forward", x.w_C1W.dtype,
                 {flop * x.y_TC.numel(), bytes_of(x.x_TC) + bytes_of({x.halo, x.w_C1W, x.y_TC})});
  ctx.ops->short_conv_forward(ctx, x);
}

void short_conv_backward(const Context& ctx, const ShortConvBackward& x) {
  check(x.sequence, x.x_TC, x.halo, x.w_C1W, x.dy_TC);
  check(x.sequence, x.dx_TC, x.dhalo, x.dw, x.dy_TC);
  ASHLAR_ASSERT(x.dx_TC.cols == x.x_TC.cols && x.dw.shape == x.w_C1W.shape);
  const int64_t flop = 6 * x.w_C1W.shape[2] + 10;
  const auto call =
      ctx.record("short_conv_backward", x.w_C1W.dtype,
                 {flop * x.dy_TC.numel(), bytes_of(x.x_TC) + bytes_of(x.dx_TC) +
                                              bytes_of({x.halo, x.w_C1W, x.dy_TC, x.dhalo, x.dw})});
  ctx.ops->short_conv_backward(ctx, x);
}

}  // namespace ashlar::kernels
