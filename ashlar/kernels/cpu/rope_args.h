// The rows of rope.h on the vectors of isa(), one call per task of tokens [begin, end); and the
// plain rotation, which qk.cpp has too.
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/rope.h"

namespace ashlar::kernels::cpu {

// Without norms q_norm to rstd_k are absent.
template <typename T>
struct HeadsArgs {
  HeadsShape s;
  const Sequence* sequence;
  Cells<T> rope, qkv, q_norm, k_norm, rstd_q, rstd_k, qhat, khat, v;
};
void heads_rows_fast(const HeadsArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct HeadsGradientArgs {
  HeadsShape s;
  const Sequence* sequence;
  Cells<T> rope, qkv, q_norm, k_norm, rstd_q, rstd_k, dqhat, dkhat, dv, dqkv;
};
// partial: with norms dq_norm [D], dk_norm [D]; then D elements of scratch.
void heads_gradient_rows_fast(const HeadsGradientArgs<float>& args, int64_t begin, int64_t end,
                              float* partial);

// Where a head lies: numbers 0 .. N-1 are queries, N .. N+K-1 keys.
struct HeadOffsets {
  bool key;
  int64_t in_qkv;  // its first element there (and in dqkv)
  int64_t in_hat;  // in qhat or khat (and their gradients)
  int64_t rstd;    // in rstd_q or rstd_k
};
inline HeadOffsets head_offsets(const HeadsShape& s, int64_t t, int64_t head) {
  const bool key = head >= s.N;
  const int64_t row = key ? t * s.K + head - s.N : t * s.N + head;
  return {key, t * s.width() + head * s.D, row * s.D, row};
}

// Element i of x rotated by the angles of `row` of the table, in direction +1 or -1.
template <typename T, typename X>
T rotated(Cells<T> rope, int64_t row, int64_t rho, int64_t i, T direction, X x) {
  if (i >= rho) return x(i);
  const int64_t half = rho / 2, pair = i % half;
  const T c = rope[row * rho + pair], s = direction * rope[row * rho + half + pair];
  return i < half ? x(i) * c - x(i + half) * s : x(i) * c + x(i - half) * s;
}

}  // namespace ashlar::kernels::cpu
