#include "ashlar/kernels/qk.h"

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// The queries of every key head are at hand, or their sums are.
void check_query_sums(const QkShape& s, const Tensor& sums, int64_t T, DType stream) {
  ASHLAR_ASSERT(bool(sums) == (s.G() != s.N / s.K));
  if (sums) check_tensor(sums, {T, s.K * s.D}, stream);
}

// Checks the arguments that every call but qk_query_sums has.
template <typename Call>
void check_inputs(const Call& x) {
  const QkShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens();
  const DType stream = x.b1_C.dtype;
  ASHLAR_ASSERT(is_stream(stream));
  ASHLAR_ASSERT(s.D <= kMaxHeadDim && s.N % s.K == 0 && s.num_delayed() <= s.K * s.D);
  ASHLAR_ASSERT(s.rotary_dim % 2 == 0 && s.rotary_dim <= s.D);
  ASHLAR_ASSERT(s.delayed >= 0 || s.K * s.D % 2 == 0);
  check_tensor(x.rope_PR, {x.rope_PR.shape[0], s.rotary_dim}, stream);
  for (const Segment& segment : x.sequence.segments())
    ASHLAR_ASSERT(segment.position + segment.length <= x.rope_PR.shape[0]);
  check_real(x.qkv, {T, s.C() + s.K * s.D});
  check_tensor(x.y_TC, {T, s.C()}, x.qkv.dtype);
  check_tensor(x.b1_C, {s.C()}, stream);
  check_tensor(x.n_q_TN, {T, s.N}, stream);
}

}  // namespace

void qk_query_sums(const Context& ctx, const QkShape& s, const Tensor& qkv,
                   const Tensor& q_sum_TKD) {
  const int64_t T = qkv.shape[0], KD = s.K * s.D, read = T * s.N * s.D;
  ASHLAR_ASSERT(is_stream(q_sum_TKD.dtype));
  check_real(qkv, {T, s.C() + KD});
  check_tensor(q_sum_TKD, {T, KD}, q_sum_TKD.dtype);
  const auto call = ctx.record("qk_query_sums", q_sum_TKD.dtype,
                               {read, read * size_of(qkv.dtype) + q_sum_TKD.bytes()});
  ctx.ops->qk_query_sums(ctx, s, qkv, q_sum_TKD);
}

void qk_query_gradient_sums(const Context& ctx, const QkQueryGradientSums& x) {
  const QkShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens();
  check_inputs(x);
  const DType stream = x.b1_C.dtype;
  check_tensor(x.dqhat, {T, s.N * s.D}, stream);
  check_tensor(x.dq_sum_TKD, {T, s.K * s.D}, stream);
  const auto call =
      ctx.record("qk_query_gradient_sums", stream,
                 {20 * T * s.N * s.D, bytes_of({x.qkv, x.dqhat, x.dqhat, x.n_q_TN, x.dq_sum_TKD})});
  ctx.ops->qk_query_gradient_sums(ctx, x);
}

void qk_forward(const Context& ctx, const QkForward& x) {
  const QkShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens(), KD = s.K * s.D;
  const DType stream = x.b1_C.dtype;
  check_inputs(x);
  check_query_sums(s, x.q_sum_TKD, T, stream);
  check_tensor(x.tau_K, {s.K}, stream);
  check_tensor(x.n_k_TK, {T, s.K}, stream);
  check_tensor(x.halo_vd, {x.sequence.num_halos(), s.num_delayed()}, stream);
  check_real(x.qhat, {T, s.N * s.D});
  check_real(x.khat, {T, KD});
  check_real(x.v, {T, KD});
  const auto call = ctx.record("qk_forward", stream,
                               {14 * T * s.C(), bytes_of({x.qkv, x.y_TC, x.b1_C, x.halo_vd, x.qhat,
                                                          x.khat, x.v, x.n_q_TN, x.n_k_TK})});
  ctx.ops->qk_forward(ctx, x);
}

void qk_backward(const Context& ctx, const QkBackward& x) {
  const QkShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens(), KD = s.K * s.D;
  const DType stream = x.b1_C.dtype;
  check_inputs(x);
  for (const Tensor* sums : {&x.q_sum_TKD, &x.dq_sum_TKD}) check_query_sums(s, *sums, T, stream);
  for (const Tensor* t : {&x.tau_K, &x.dtau_K}) check_tensor(*t, {s.K}, stream);
  check_tensor(x.n_k_TK, {T, s.K}, stream);
  check_tensor(x.dqhat, {T, s.N * s.D}, stream);
  check_tensor(x.dkhat, {T, KD}, stream);
  check_tensor(x.dv, {T, KD}, stream);
  check_real(x.dy_TC, x.y_TC.shape);
  check_real(x.dqkv, x.qkv.shape);
  check_tensor(x.dhalo_vd, {x.sequence.num_halos(), s.num_delayed()}, stream);
  check_tensor(x.db1_C, x.b1_C.shape, stream);
  const auto call =
      ctx.record("qk_backward", stream,
                 {30 * T * s.C(), bytes_of({x.qkv, x.y_TC, x.b1_C, x.n_q_TN, x.n_k_TK, x.dqhat,
                                            x.dkhat, x.dv, x.dy_TC, x.dqkv, x.dhalo_vd})});
  ctx.ops->qk_backward(ctx, x);
}

}  // namespace ashlar::kernels
