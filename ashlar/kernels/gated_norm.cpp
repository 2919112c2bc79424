#include "ashlar/kernels/gated_norm.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check_sums(const GatedNormShape& s, const Tensor& x, const Tensor& sums_TG) {
  ASHLAR_ASSERT(x.shape.ndim() == 2 && x.shape[1] == s.G * s.D && is_stream(x.dtype));
  ASHLAR_ASSERT(s.mean_over >= s.D);
  check_tensor(sums_TG, {x.shape[0], s.G}, x.dtype);
}

// Checks x, its weight, gate and result; or their gradients.
void check(const GatedNormShape& s, const Tensor& x, const Tensor& w, const Matrix& z,
           const Tensor& y) {
  check_tensor(w, {s.shared_weight ? s.D : s.G * s.D}, x.dtype);
  check_real(y, x.shape);
  if (s.gate == OutputGate::kNone)
    ASHLAR_ASSERT(z.cols == 0);
  else
    ASHLAR_ASSERT(z.rows == x.shape[0] && z.cols == x.shape[1] && is_real(z.dtype));
}

void check_backward(const GatedNormBackward& x) {
  check_sums(x.shape, x.x, x.squares_TG);
  check_sums(x.shape, x.x, x.dots_TG);
  check(x.shape, x.x, x.w, x.z, x.dy);
}

}  // namespace

void gated_norm_squares(const Context& ctx, const GatedNormShape& shape, const Tensor& x,
                        const Tensor& squares_TG) {
  check_sums(shape, x, squares_TG);
  const auto call =
      ctx.record("gated_norm_squares", x.dtype, {2 * x.numel(), bytes_of({x, squares_TG})});
  ctx.ops->gated_norm_squares(ctx, shape, x, squares_TG);
}

void gated_norm_forward(const Context& ctx, const GatedNormForward& x) {
  check_sums(x.shape, x.x, x.squares_TG);
  check(x.shape, x.x, x.w, x.z, x.y);
  const auto call =
      ctx.record("gated_norm_forward", x.x.dtype,
                 {8 * x.x.numel(), bytes_of({x.x, x.squares_TG, x.w, x.y}) + bytes_of(x.z)});
  ctx.ops->gated_norm_forward(ctx, x);
}

void gated_norm_dots(const Context& ctx, const GatedNormBackward& x) {
  check_backward(x);
  const auto call =
      ctx.record("gated_norm_dots", x.x.dtype,
                 {8 * x.x.numel(), bytes_of({x.x, x.w, x.dy, x.dots_TG}) + bytes_of(x.z)});
  ctx.ops->gated_norm_dots(ctx, x);
}

void gated_norm_backward(const Context& ctx, const GatedNormBackward& x) {
  check_backward(x);
  check(x.shape, x.dx, x.dw, x.dz, x.dy);
  check_tensor(x.dx, x.x.shape, x.x.dtype);
  const auto call = ctx.record(
      "gated_norm_backward", x.x.dtype,
      {16 * x.x.numel(), bytes_of({x.x, x.squares_TG, x.w, x.dy, x.dots_TG, x.dx, x.dw}) +
                             bytes_of(x.z) + bytes_of(x.dz)});
  ctx.ops->gated_norm_backward(ctx, x);
}

}  // namespace ashlar::kernels
