#include "ashlar/kernels/linear_heads.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// Checks qkv and the heads made of it, or their gradients.
void check(const LinearHeadsShape& s, const Matrix& qkv, const Tensor& q, const Tensor& k,
           const Tensor& v, const Tensor& rstd_q, const Tensor& rstd_k, DType stream) {
  ASHLAR_ASSERT(qkv.cols == s.width() && is_real(qkv.dtype));
  ASHLAR_ASSERT(s.values == FeatureMap::kIdentity || s.values == FeatureMap::kSilu);
  check_real(q, {qkv.rows, s.K * s.dk});
  check_real(k, q.shape);
  check_real(v, {qkv.rows, s.H * s.dv});
  ASHLAR_ASSERT(bool(rstd_q) == s.unit_keys && bool(rstd_k) == s.unit_keys);
  if (!s.unit_keys) return;
  check_tensor(rstd_q, {qkv.rows, s.K}, stream);
  check_tensor(rstd_k, {qkv.rows, s.K}, stream);
}

DType stream_of(const Matrix& qkv) {
  return qkv.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace

void linear_heads_forward(const Context& ctx, const LinearHeadsForward& x) {
  const DType stream = stream_of(x.qkv);
  check(x.shape, x.qkv, x.qhat, x.khat, x.vhat, x.rstd_q_TK, x.rstd_k_TK, stream);
  const auto call =
      ctx.record("linear_heads_forward", stream,
                 {8 * x.qkv.rows * x.qkv.cols,
                  bytes_of(x.qkv) + bytes_of({x.qhat, x.khat, x.vhat, x.rstd_q_TK, x.rstd_k_TK})});
  ctx.ops->linear_heads_forward(ctx, x);
}

void linear_heads_backward(const Context& ctx, const LinearHeadsBackward& x) {
  const DType stream = stream_of(x.qkv);
  check(x.shape, x.qkv, x.dqhat, x.dkhat, x.dvhat, x.rstd_q_TK, x.rstd_k_TK, stream);
  for (const Tensor* t : {&x.dqhat, &x.dkhat, &x.dvhat}) ASHLAR_ASSERT(t->dtype == stream);
  ASHLAR_ASSERT(x.dqkv.rows == x.qkv.rows && x.dqkv.cols == x.qkv.cols && is_real(x.dqkv.dtype));
  const auto call =
      ctx.record("linear_heads_backward", stream,
                 {16 * x.qkv.rows * x.qkv.cols,
                  bytes_of(x.qkv) + bytes_of(x.dqkv) +
                      bytes_of({x.rstd_q_TK, x.rstd_k_TK, x.dqhat, x.dkhat, x.dvhat})});
  ctx.ops->linear_heads_backward(ctx, x);
}

}  // namespace ashlar::kernels
