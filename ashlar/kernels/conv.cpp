#include "ashlar/kernels/conv.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check(const Sequence& sequence, const Tensor& columns, const Matrix& z, const Tensor& halo_z,
           const Tensor& w0, const Tensor& b0) {
  const int64_t C = z.cols;
  const DType stream = b0.dtype;
  ASHLAR_ASSERT(z.rows == sequence.num_tokens() && is_real(z.dtype) && is_stream(stream));
  check_real(columns, {z.rows, 2 * C});
  check_tensor(halo_z, {sequence.num_halos(), 2, C}, stream);
  ASHLAR_ASSERT(w0.numel() == 2 * C && w0.dtype == stream);
  check_tensor(b0, {C}, stream);
}

}  // namespace

void conv_columns_forward(const Context& ctx, const ConvColumnsForward& x) {
  check(x.sequence, x.columns, x.z_TC, x.halo_z, x.w0_C2, x.b0_C);
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  const auto call =
      ctx.record("conv_columns_forward", x.b0_C.dtype,
                 {6 * T * C, bytes_of(x.z_TC) + bytes_of({x.halo_z, x.w0_C2, x.b0_C, x.columns})});
  ctx.ops->conv_columns_forward(ctx, x);
}

void conv_columns_backward(const Context& ctx, const ConvColumnsBackward& x) {
  check(x.sequence, x.dcolumns, x.z_TC, x.halo_z, x.w0_C2, x.b0_C);
  check(x.sequence, x.dcolumns, x.dz_TC, x.dhalo_z, x.dw0_C2, x.db0_C);
  ASHLAR_ASSERT(x.dz_TC.cols == x.z_TC.cols);
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  const auto call = ctx.record(
      "conv_columns_backward", x.b0_C.dtype,
      {14 * T * C, bytes_of(x.z_TC) + 2 * bytes_of(x.dz_TC) +
                       bytes_of({x.halo_z, x.w0_C2, x.dcolumns, x.dhalo_z, x.dw0_C2, x.db0_C})});
  ctx.ops->conv_columns_backward(ctx, x);
}

}  // namespace ashlar::kernels
