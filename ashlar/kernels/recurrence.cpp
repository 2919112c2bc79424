#include "ashlar/kernels/recurrence.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

DType state_type(const Recurrence& x) {
  return x.q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

void check_matrix(const Matrix& m, int64_t rows, int64_t cols, DType dtype) {
  ASHLAR_ASSERT(m.rows == rows && m.cols == cols && m.stride >= cols && m.dtype == dtype);
}

void check_states(const Recurrence& x, const Tensor& states, int64_t count) {
  if (states) check_tensor(states, {count, x.shape.H, x.shape.dk, x.shape.dv}, state_type(x));
}

Shape decay_shape(const Recurrence& x) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  const int64_t T = x.sequence.num_tokens();
  if (x.decay == Decay::kHead) return {H};
  return x.decay == Decay::kToken ? Shape{T, H} : Shape{T, H * dk};
}

void check(const Recurrence& x, DType compute) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  const int64_t T = x.sequence.num_tokens();
  ASHLAR_ASSERT(K > 0 && H > 0 && H % K == 0 && dk > 0 && dv > 0);
  ASHLAR_ASSERT(is_real(x.q.dtype) && (compute == DType::kF64) == (x.q.dtype == DType::kF64));
  check_matrix(x.q, T, K * dk, x.q.dtype);
  check_matrix(x.k, T, K * dk, x.q.dtype);
  check_matrix(x.v, T, H * dv, x.q.dtype);
  ASHLAR_ASSERT(bool(x.log_decay) == (x.decay != Decay::kNone));
  if (x.log_decay) check_tensor(x.log_decay, decay_shape(x), state_type(x));
  if (x.beta_TH) check_tensor(x.beta_TH, {T, H}, state_type(x));
  check_states(x, x.entering, int64_t(x.chunks.size()));
  check_states(x, x.kept, Recurrence::num_kept(T));
  int64_t end = 0;
  for (const StateChunk& chunk : x.chunks) {
    ASHLAR_ASSERT(chunk.begin == end && chunk.begin < chunk.end);
    end = chunk.end;
  }
  ASHLAR_ASSERT(end == T);
}

void check(const Recurrence& x, const RecurrenceGradients& g) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  const int64_t T = x.sequence.num_tokens();
  const DType dtype = state_type(x);
  check_matrix(g.dout, T, H * dv, dtype);
  check_matrix(g.dq, T, K * dk, dtype);
  check_matrix(g.dk, T, K * dk, dtype);
  check_matrix(g.dv, T, H * dv, dtype);
  ASHLAR_ASSERT(x.kept);
  check_states(x, g.d_leaving, int64_t(x.chunks.size()));
  ASHLAR_ASSERT(bool(g.dlog_decay) == (x.decay == Decay::kToken || x.decay == Decay::kChannel));
  if (g.dlog_decay) check_tensor(g.dlog_decay, decay_shape(x), dtype);
  ASHLAR_ASSERT(bool(g.dbeta_TH) == bool(x.beta_TH));
  if (g.dbeta_TH) check_tensor(g.dbeta_TH, {T, H}, dtype);
}

// Flop per token and head, as multiples of B dk, B dv and dk dv.
struct Work {
  int64_t keys, values, states;
};
int64_t flop(const Recurrence& x, const Work& plain, const Work& delta) {
  const auto& [K, H, dk, dv, scale] = x.shape;
  const auto of = [&, dk = dk, dv = dv](const Work& w) {
    return Recurrence::kTile * (w.keys * dk + w.values * dv) + w.states * dk * dv;
  };
  return x.sequence.num_tokens() * H * (of(plain) + (x.beta_TH ? of(delta) : 0));
}

int64_t bytes_read(const Recurrence& x) {
  return bytes_of(x.q) + bytes_of(x.k) + bytes_of(x.v) +
         bytes_of({x.log_decay, x.beta_TH, x.entering, x.kept});
}

}  // namespace

TraceDims dims_of(const Recurrence& x) {
  return {int32_t(x.shape.H), int32_t(x.sequence.num_tokens()), int32_t(x.shape.dv),
          int32_t(x.shape.dk)};
}

void recurrence_forward(const Context& ctx, DType compute, const Recurrence& x, const Matrix& out,
                        const Tensor& leaving) {
  check(x, compute);
  check_matrix(out, x.sequence.num_tokens(), x.shape.H * x.shape.dv, state_type(x));
  check_states(x, leaving, int64_t(x.chunks.size()));
  const auto call = ctx.record(
      "recurrence_forward", compute,
      {flop(x, {1, 1, 4}, {1, 1, 2}), bytes_read(x) + bytes_of(out) + bytes_of({leaving})},
      dims_of(x));
  ctx.ops->recurrence_forward(ctx, compute, x, out, leaving);
}

void recurrence_backward(const Context& ctx, DType compute, const Recurrence& x,
                         const RecurrenceGradients& g) {
  check(x, compute);
  check(x, g);
  const int64_t written = bytes_of(g.dout) + bytes_of(g.dq) + bytes_of(g.dk) + bytes_of(g.dv) +
                          bytes_of({g.d_leaving, g.dlog_decay, g.dbeta_TH});
  const auto call =
      ctx.record("recurrence_backward", compute,
                 {flop(x, {3, 2, 10}, {3, 3, 6}), bytes_read(x) + written}, dims_of(x));
  ctx.ops->recurrence_backward(ctx, compute, x, g);
}

Shape transition_shape(const RecurrenceShape& shape, Decay decay, bool delta, int64_t num_chunks) {
  if (delta) return {num_chunks, shape.H, shape.dk, shape.dk};
  if (decay == Decay::kChannel) return {num_chunks, shape.H, shape.dk};
  return {num_chunks, shape.H};
}

void recurrence_maps(const Context& ctx, DType compute, const Recurrence& x,
                     const Tensor& transition, const Tensor& made) {
  check(x, compute);
  const auto num_chunks = int64_t(x.chunks.size());
  check_tensor(transition, transition_shape(x.shape, x.decay, bool(x.beta_TH), num_chunks),
               state_type(x));
  check_tensor(made, {num_chunks, x.shape.H, x.shape.dk, x.shape.dv}, state_type(x));
  const int64_t dk = x.shape.dk, identity = x.beta_TH ? Recurrence::kTile * dk + 4 * dk * dk : 0;
  const auto call = ctx.record(
      "recurrence_maps", compute,
      {flop(x, {0, 0, 2}, {1, 1, 2}) + x.sequence.num_tokens() * x.shape.H * identity,
       bytes_of(x.k) + bytes_of(x.v) + bytes_of({x.log_decay, x.beta_TH, transition, made})},
      dims_of(x));
  ctx.ops->recurrence_maps(ctx, compute, x, transition, made);
}

void recurrence_backward_maps(const Context& ctx, DType compute, const Recurrence& x,
                              const Matrix& dout, const Tensor& d_made) {
  check(x, compute);
  check_matrix(dout, x.sequence.num_tokens(), x.shape.H * x.shape.dv, state_type(x));
  check_tensor(d_made, {int64_t(x.chunks.size()), x.shape.H, x.shape.dk, x.shape.dv},
               state_type(x));
  const auto call =
      ctx.record("recurrence_backward_maps", compute,
                 {flop(x, {0, 0, 2}, {2, 2, 4}), bytes_of(x.q) + bytes_of(x.k) + bytes_of(dout) +
                                                     bytes_of({x.log_decay, x.beta_TH, d_made})},
                 dims_of(x));
  ctx.ops->recurrence_backward_maps(ctx, compute, x, dout, d_made);
}

void apply_map(const Context& ctx, const Tensor& transition, const Tensor& made,
               const Tensor& state, bool transposed) {
  ASHLAR_ASSERT(state.shape.ndim() == 3 && is_stream(state.dtype));
  const int64_t n = state.shape[0], dk = state.shape[1], dv = state.shape[2];
  const int dims = transition.shape.ndim();
  ASHLAR_ASSERT(dims >= 1 && dims <= 3);
  check_tensor(transition,
               dims == 1   ? Shape{n}
               : dims == 2 ? Shape{n, dk}
                           : Shape{n, dk, dk},
               state.dtype);
  if (made) check_tensor(made, state.shape, state.dtype);
  const int64_t flop = n * dk * dv * (dims == 3 ? 2 * dk : 1) + made.numel();
  const auto call =
      ctx.record("apply_map", state.dtype, {flop, bytes_of({transition, made, state, state})},
                 {int32_t(n), 0, int32_t(dv), int32_t(dk)});
  ctx.ops->apply_map(ctx, transition, made, state, transposed);
}

}  // namespace ashlar::kernels
