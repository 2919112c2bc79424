#include "ashlar/kernels/rope.h"

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// Checks what both calls have.
template <typename Call>
void check_inputs(const Call& x, DType stream) {
  const HeadsShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens();
  ASHLAR_ASSERT(is_stream(stream));
  ASHLAR_ASSERT(s.N > 0 && s.K > 0 && s.D > 0 && s.D <= kMaxHeadDim);
  ASHLAR_ASSERT(s.rotary_dim % 2 == 0 && s.rotary_dim >= 0 && s.rotary_dim <= s.D);
  if (s.rotary_dim > 0) {
    check_tensor(x.rope_PR, {x.rope_PR.shape[0], s.rotary_dim}, stream);
    for (const Segment& segment : x.sequence.segments())
      ASHLAR_ASSERT(segment.position + segment.length <= x.rope_PR.shape[0]);
  }
  ASHLAR_ASSERT(bool(x.q_norm_D) == bool(x.k_norm_D));
  ASHLAR_ASSERT(bool(x.rstd_q_TN) == bool(x.q_norm_D) && bool(x.rstd_k_TK) == bool(x.q_norm_D));
  if (!x.q_norm_D) return;
  for (const Tensor* t : {&x.q_norm_D, &x.k_norm_D}) check_tensor(*t, {s.D}, stream);
  check_tensor(x.rstd_q_TN, {T, s.N}, stream);
  check_tensor(x.rstd_k_TK, {T, s.K}, stream);
}

// Flop for queries and keys: 3 for an element that is rotated, `norm_flop` for each element.
int64_t flop_of(const HeadsShape& s, int64_t num_tokens, int64_t norm_flop) {
  return num_tokens * (s.N + s.K) * (3 * s.rotary_dim + norm_flop * s.D);
}

// Bytes of q, k and v in the fused product.
int64_t fused_bytes(const HeadsShape& s, const Tensor& qkv) {
  return qkv.bytes() / s.width() * s.gate_begin();
}

}  // namespace

void rope_table(const Context& ctx, const Rope& rope, const Tensor& table_PR) {
  using Type = RopeScaling::Type;
  const RopeScaling& s = rope.scaling;
  ASHLAR_ASSERT(table_PR.shape.ndim() == 2 && table_PR.shape[1] % 2 == 0 &&
                is_stream(table_PR.dtype) && rope.length >= 0);
  ASHLAR_ASSERT(s.type == Type::kNone || s.factor > 0);
  ASHLAR_ASSERT(s.type < Type::kDynamic || s.original_positions > 0);
  ASHLAR_ASSERT(s.type != Type::kDynamic || table_PR.shape[1] > 2);
  ASHLAR_ASSERT(s.type != Type::kYarn || (s.beta_slow > 0 && s.beta_fast >= s.beta_slow));
  ASHLAR_ASSERT(s.type != Type::kLlama3 || s.high_freq_factor > s.low_freq_factor);
  ctx.ops->rope_table(ctx, rope, table_PR);
}

void heads_forward(const Context& ctx, const HeadsForward& x) {
  const HeadsShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens();
  const DType stream = x.qkv.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  check_inputs(x, stream);
  check_real(x.qkv, {T, s.width()});
  check_real(x.qhat, {T, s.N * s.D});
  for (const Tensor* t : {&x.khat, &x.v}) check_real(*t, {T, s.K * s.D});
  const auto call = ctx.record(
      "heads_forward", stream,
      {flop_of(s, T, x.q_norm_D ? 4 : 0),
       fused_bytes(s, x.qkv) + bytes_of({x.qhat, x.khat, x.v, x.rstd_q_TN, x.rstd_k_TK})});
  ctx.ops->heads_forward(ctx, x);
}

void heads_backward(const Context& ctx, const HeadsBackward& x) {
  const HeadsShape& s = x.shape;
  const int64_t T = x.sequence.num_tokens();
  const DType stream = x.dqhat.dtype;
  const bool norms = bool(x.q_norm_D);
  check_inputs(x, stream);
  if (norms || x.qkv) check_real(x.qkv, {T, s.width()});
  check_tensor(x.dqhat, {T, s.N * s.D}, stream);
  for (const Tensor* t : {&x.dkhat, &x.dv}) check_tensor(*t, {T, s.K * s.D}, stream);
  check_real(x.dqkv, {T, s.width()});
  ASHLAR_ASSERT(bool(x.dq_norm_D) == norms && bool(x.dk_norm_D) == norms);
  if (norms)
    for (const Tensor* t : {&x.dq_norm_D, &x.dk_norm_D}) check_tensor(*t, {s.D}, stream);
  const int64_t read_for_norms =
      norms ? fused_bytes(s, x.qkv) + bytes_of({x.rstd_q_TN, x.rstd_k_TK}) : 0;
  const auto call =
      ctx.record("heads_backward", stream,
                 {flop_of(s, T, norms ? 11 : 0),
                  bytes_of({x.dqhat, x.dkhat, x.dv}) + fused_bytes(s, x.dqkv) + read_for_norms});
  ctx.ops->heads_backward(ctx, x);
}

}  // namespace ashlar::kernels
