#include "ashlar/kernels/unmasked.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

void check_states(const Recurrence& x, const Tensor& states) {
  if (states)
    check_tensor(states, {2 * int64_t(x.chunks.size()), x.shape.H, x.shape.dk, x.shape.dv},
                 x.q.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
}

// flop: of a token, head and element of a state.
Cost cost_of(const Recurrence& x, int64_t flop, int64_t bytes) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  return {flop * x.sequence.num_tokens() * H * dk * dv, bytes};
}

int64_t bytes_of_qkv(const Recurrence& x) {
  return bytes_of(x.q) + bytes_of(x.k) + bytes_of(x.v);
}

}  // namespace

void unmasked_sums(const Context& ctx, DType compute, const Recurrence& x, const Matrix& left,
                   const Matrix& right, const Tensor& sums) {
  check_states(x, sums);
  const auto call =
      ctx.record("unmasked_sums", compute,
                 cost_of(x, 2, bytes_of(left) + bytes_of(right) + bytes_of({sums})), dims_of(x));
  ctx.ops->unmasked_sums(ctx, compute, x, left, right, sums);
}

void unmasked_forward(const Context& ctx, DType compute, const Recurrence& x, const Tensor& outside,
                      const Matrix& out) {
  check_states(x, outside);
  const auto call =
      ctx.record("unmasked_forward", compute,
                 cost_of(x, 4, bytes_of_qkv(x) + bytes_of(out) + bytes_of({outside})), dims_of(x));
  ctx.ops->unmasked_forward(ctx, compute, x, outside, out);
}

void unmasked_backward(const Context& ctx, DType compute, const Recurrence& x,
                       const Tensor& outside, const RecurrenceGradients& g) {
  check_states(x, outside);
  check_states(x, g.d_leaving);
  const int64_t written = bytes_of(g.dq) + bytes_of(g.dk) + bytes_of(g.dv);
  const auto call = ctx.record(
      "unmasked_backward", compute,
      cost_of(x, 10,
              bytes_of_qkv(x) + bytes_of(g.dout) + written + bytes_of({outside, g.d_leaving})),
      dims_of(x));
  ctx.ops->unmasked_backward(ctx, compute, x, outside, g);
}

}  // namespace ashlar::kernels
