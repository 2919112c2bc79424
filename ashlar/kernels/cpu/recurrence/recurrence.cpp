#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/recurrence/amx_chunked.h"
#include "ashlar/kernels/cpu/recurrence/chunked.h"
#include "ashlar/kernels/cpu/recurrence/products.h"
#include "ashlar/kernels/cpu/recurrence/rows.h"

namespace ashlar::kernels::cpu {

void recurrence_forward(const Context& ctx, DType compute, const Recurrence& x, const Matrix& out,
                        const Tensor& leaving) {
  const RecurrenceArgs call{x, ctx, compute};
  const gemm::Engine* engine = gemm::engine_for(ctx, compute);
#if defined(__x86_64__)
  if (engine == &gemm::amx_engine()) return amx::recurrence_forward(call, out, leaving);
#endif
  if (engine) return recurrence_forward_chunked<float>(engine, call, out, leaving);
  recurrence_forward_reference(call, out, leaving);
}

void recurrence_backward(const Context& ctx, DType compute, const Recurrence& x,
                         const RecurrenceGradients& g) {
  const RecurrenceArgs call{x, ctx, compute};
  const gemm::Engine* engine = gemm::engine_for(ctx, compute);
#if defined(__x86_64__)
  if (engine == &gemm::amx_engine()) return amx::recurrence_backward(call, g);
#endif
  if (engine) return recurrence_backward_chunked<float>(engine, call, g);
  recurrence_backward_reference(call, g);
}

void recurrence_maps(const Context& ctx, DType compute, const Recurrence& x,
                     const Tensor& transition, const Tensor& made) {
  const RecurrenceArgs call{x, ctx, compute};
  if (const gemm::Engine* engine = gemm::engine_for(ctx, compute))
    return recurrence_maps_chunked<float>(engine, call, {transition, made});
  recurrence_maps_reference(call, {transition, made});
}

void recurrence_backward_maps(const Context& ctx, DType compute, const Recurrence& x,
                              const Matrix& dout, const Tensor& d_made) {
  const RecurrenceArgs call{x, ctx, compute};
  if (const gemm::Engine* engine = gemm::engine_for(ctx, compute))
    return recurrence_backward_maps_chunked<float>(engine, call, dout, d_made);
  recurrence_backward_maps_reference(call, dout, d_made);
}

namespace {

template <typename A>
void apply(const Context& ctx, const Tensor& transition, const Tensor& made, const Tensor& state,
           bool transposed) {
  const int64_t n = state.shape[0], dk = state.shape[1], dv = state.shape[2], size = dk * dv;
  const int dims = transition.shape.ndim();
  const Arena::Scope scope(*ctx.workspace);
  Tensor scratch;
  if (dims == 3) scratch = ctx.workspace->take(dtype_of<A>, {ctx.threads->size(), size});
  if (ctx.meta()) return;
  const RowOps<A>& ops = row_ops<A>();
  ctx.threads->run(n, [&](int64_t h, int worker) {
    A* M = state.as<A>() + h * size;
    const A* a = transition.as<A>() + h * (transition.numel() / n);
    const Matrix rows = view(M, dk, dv, dv);
    if (dims == 1) ops.copy(rows, *a, M, dv);
    if (dims == 2) ops.scale(rows, a, M, dv);
    if (dims == 3) {
      A* next = scratch.as<A>() + worker * size;
      ops.apply(a, transposed ? 1 : dk, transposed ? dk : 1, dk, dv, M, next);
      std::copy_n(next, size, M);
    }
    if (made) ops.add(view(made.as<A>() + h * size, dk, dv, dv), M, dv);
  });
}

}  // namespace

void apply_map(const Context& ctx, const Tensor& transition, const Tensor& made,
               const Tensor& state, bool transposed) {
  with_real(state.dtype,
            [&]<typename A>(A) { apply<A>(ctx, transition, made, state, transposed); });
}

}  // namespace ashlar::kernels::cpu
