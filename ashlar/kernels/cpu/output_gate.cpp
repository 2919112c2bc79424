#include "ashlar/kernels/output_gate.h"

#include "ashlar/kernels/cpu/activations.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/output_gate_args.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
void output_gate_rows(const OutputGateArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.C; ++i)
      x.y.set(t * x.C + i, x.att[t * x.C + i] * sigmoid(x.gate[t * x.gate_stride + i]));
}

template <typename T>
void output_gate_gradient_rows(const OutputGateGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.C; ++i) {
      const int64_t at = t * x.C + i;
      const T sigma = sigmoid(x.gate[t * x.gate_stride + i]), dy = x.dy[at];
      x.dgate.set(t * x.dgate_stride + i, dy * x.att[at] * sigma * (T(1) - sigma));
      x.datt.set(at, dy * sigma);
    }
}

}  // namespace

void output_gate_forward(const Context& ctx, const Tensor& att, const Matrix& gate,
                         const Tensor& y) {
  with_real(gate.dtype, [&]<typename Real>(Real) {
    const OutputGateArgs<Real> args{
        .C = gate.cols, .gate_stride = gate.stride, .att = att, .gate = gate, .y = y};
    run_rows(ctx, gate.rows, args, output_gate_rows_fast, output_gate_rows<Real>);
  });
}

void output_gate_backward(const Context& ctx, const OutputGateBackward& x) {
  with_real(x.gate.dtype, [&]<typename Real>(Real) {
    const OutputGateGradientArgs<Real> args{.C = x.gate.cols,
                                            .gate_stride = x.gate.stride,
                                            .dgate_stride = x.dgate.stride,
                                            .dy = x.dy,
                                            .att = x.att,
                                            .gate = x.gate,
                                            .datt = x.datt,
                                            .dgate = x.dgate};
    run_rows(ctx, x.gate.rows, args, output_gate_gradient_rows_fast,
             output_gate_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
