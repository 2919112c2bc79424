#include "ashlar/kernels/conv.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels {
namespace {

void check(const Sequence& sequence, const Tensor& columns, const Matrix& z, const Tensor& halo_z,
           const Tensor& w0, const Tensor& b0) {
  const int64_t C = z.cols;
  ASHLAR_ASSERT(z.rows == sequence.num_tokens() && is_stream(z.dtype));
  check_real(columns, {z.rows, 2 * C});
  check_tensor(halo_z, {sequence.num_halos(), 2, C}, z.dtype);
  ASHLAR_ASSERT(w0.numel() == 2 * C && w0.dtype == z.dtype);
  check_tensor(b0, {C}, z.dtype);
}

}  // namespace

void conv_columns_forward(const Context& ctx, const ConvColumnsForward& x) {
  check(x.sequence, x.columns, x.z_TC, x.halo_z, x.w0_C2, x.b0_C);
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  const auto call =
      ctx.record("conv_columns_forward", x.z_TC.dtype,
                 {6 * T * C, bytes_of(x.z_TC) + bytes_of({x.halo_z, x.w0_C2, x.b0_C, x.columns})});
  cpu::conv_columns_forward(ctx, x);
}

void conv_columns_backward(const Context& ctx, const ConvColumnsBackward& x) {
  check(x.sequence, x.dcolumns, x.z_TC, x.halo_z, x.w0_C2, x.b0_C);
  check(x.sequence, x.dcolumns, x.dz_TC, x.dhalo_z, x.dw0_C2, x.db0_C);
  ASHLAR_ASSERT(x.dz_TC.cols == x.z_TC.cols && x.dz_TC.dtype == x.z_TC.dtype);
  const int64_t T = x.z_TC.rows, C = x.z_TC.cols;
  const auto call = ctx.record(
      "conv_columns_backward", x.z_TC.dtype,
      {14 * T * C, bytes_of(x.z_TC) + 2 * bytes_of(x.dz_TC) +
                       bytes_of({x.halo_z, x.w0_C2, x.dcolumns, x.dhalo_z, x.dw0_C2, x.db0_C})});
  cpu::conv_columns_backward(ctx, x);
}

}  // namespace ashlar::kernels
