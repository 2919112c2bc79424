#include "ashlar/kernels/output_gate.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check_columns(const Matrix& columns, const Shape& shape) {
  ASHLAR_ASSERT(columns.rows == shape[0] && columns.cols == shape[1]);
}

}  // namespace

void output_gate_forward(const Context& ctx, const Tensor& att, const Matrix& gate,
                         const Tensor& y) {
  ASHLAR_ASSERT(att.shape.ndim() == 2 && is_real(gate.dtype));
  check_columns(gate, att.shape);
  for (const Tensor* t : {&att, &y}) check_real(*t, att.shape);
  const auto call = ctx.record("output_gate_forward", gate.dtype,
                               {5 * att.numel(), bytes_of({att, y}) + bytes_of(gate)});
  ctx.ops->output_gate_forward(ctx, att, gate, y);
}

void output_gate_backward(const Context& ctx, const OutputGateBackward& x) {
  const Shape& shape = x.att.shape;
  ASHLAR_ASSERT(shape.ndim() == 2 && is_real(x.gate.dtype) && is_real(x.dgate.dtype));
  for (const Matrix* m : {&x.gate, &x.dgate}) check_columns(*m, shape);
  for (const Tensor* t : {&x.dy, &x.att, &x.datt}) check_real(*t, shape);
  const int64_t bytes = bytes_of({x.dy, x.att, x.datt}) + bytes_of(x.gate) + bytes_of(x.dgate);
  const auto call = ctx.record("output_gate_backward", x.gate.dtype, {9 * x.att.numel(), bytes});
  ctx.ops->output_gate_backward(ctx, x);
}

}  // namespace ashlar::kernels
