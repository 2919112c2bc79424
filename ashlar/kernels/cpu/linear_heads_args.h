// The rows of linear_heads.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/linear_heads.h"

namespace ashlar::kernels::cpu {

inline constexpr double kUnitEps = 1e-6;

template <typename T>
struct LinearHeadsArgs {
  LinearHeadsShape s;
  int64_t stride;
  Cells<T> qkv, qhat, khat, vhat, rstd_q, rstd_k;
};
void linear_heads_rows_fast(const LinearHeadsArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct LinearHeadsGradientArgs {
  LinearHeadsShape s;
  int64_t stride, dstride;
  Cells<T> qkv, rstd_q, rstd_k, dqhat, dkhat, dvhat, dqkv;
};
void linear_heads_gradient_rows_fast(const LinearHeadsGradientArgs<float>& args, int64_t begin,
                                     int64_t end);

// Where a head of q or k lies: numbers 0 .. K-1 are of q, K .. 2K-1 of k.  Values follow.
struct LinearHead {
  bool key;
  int64_t column;  // its first one in qkv
  int64_t in_hat;  // its first element in qhat or khat
  int64_t rstd;    // in rstd_q or rstd_k
};
inline LinearHead linear_head(const LinearHeadsShape& s, int64_t t, int64_t head) {
  const bool key = head >= s.K;
  const int64_t row = t * s.K + (key ? head - s.K : head);
  return {key, head * s.dk, row * s.dk, row};
}

}  // namespace ashlar::kernels::cpu
