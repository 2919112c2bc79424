#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {

void output_gate_forward(const Context& ctx, const Tensor& att, const Matrix& gate,
                         const Tensor& y) {
  if (att.empty()) return;
  launch(ctx, device::OutputGateForward{
                  .att = elements(att),
                  .gate = elements(gate),
                  .y = elements(y),
                  .rows = gate.rows,
                  .width = gate.cols,
                  .gate_stride = gate.stride,
                  .by_vectors = by_vectors(gate) && by_vectors(gate.cols, {att, y})});
}

void output_gate_backward(const Context& ctx, const OutputGateBackward& x) {
  if (x.att.empty()) return;
  launch(ctx,
         device::OutputGateBackward{.dy = elements(x.dy),
                                    .att = elements(x.att),
                                    .gate = elements(x.gate),
                                    .datt = elements(x.datt),
                                    .dgate = elements(x.dgate),
                                    .rows = x.gate.rows,
                                    .width = x.gate.cols,
                                    .gate_stride = x.gate.stride,
                                    .dgate_stride = x.dgate.stride,
                                    .by_vectors = by_vectors(x.gate) && by_vectors(x.dgate) &&
                                                  by_vectors(x.gate.cols, {x.dy, x.att, x.datt})});
}

}  // namespace ashlar::kernels::gpu
