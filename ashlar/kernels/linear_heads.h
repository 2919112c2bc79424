// Queries, keys and values of linear attention, from a fused product, or a convolution of it, to
// the inputs of the recurrence (recurrence.h).
//
//   qhat_h = unit( f(q_h) ),  khat_h = unit( f(k_h) ),  vhat_h = g(v_h)
//   f: identity, SiLU, ReLU or elu(x) + 1;  g: identity or SiLU
//   unit(x) = x rstd, rstd = (sum(x^2) + 1e-6)^(-1/2) over a head; or unit(x) = x
//
// Source   feature maps: Katharopoulos et al. 2020, arXiv:2006.16236 (elu + 1); LASP-2's release
//          and MiniMax-01, arXiv:2501.08313 (SiLU); unit length: gated DeltaNet, arXiv:2412.06464.
// Shapes   T tokens, K heads of q and k with dk channels, H heads of v with dv.  qkv dqkv
//          [T, 2 K dk + H dv] = q | k | v (a strided Matrix); qhat khat dqhat dkhat [T, K dk]; vhat
//          dvhat [T, H dv]; rstd_q rstd_k [T, K].
// Types    qkv, rstd and dqhat dkhat dvhat: F32 or F64; qkv also BF16 if it comes from a
//          convolution in activation type; qhat khat vhat and dqkv: also BF16.
// Cost     8 flop an element of qkv forward, 16 backward.  Bandwidth-bound.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

enum class FeatureMap : uint8_t { kIdentity, kSilu, kRelu, kEluPlusOne };

struct LinearHeadsShape {
  int64_t K, H, dk, dv;
  FeatureMap keys = FeatureMap::kIdentity;    // the map of q and k
  FeatureMap values = FeatureMap::kIdentity;  // kIdentity or kSilu
  bool unit_keys = false;                     // q and k are scaled to unit length
  int64_t width() const { return 2 * K * dk + H * dv; }
};

struct LinearHeadsForward {
  LinearHeadsShape shape;
  Matrix qkv;
  Tensor qhat, khat, vhat;                // filled
  Tensor rstd_q_TK = {}, rstd_k_TK = {};  // filled; absent without unit_keys
};
void linear_heads_forward(const Context&, const LinearHeadsForward&);

struct LinearHeadsBackward {
  LinearHeadsShape shape;
  Matrix qkv;
  Tensor rstd_q_TK = {}, rstd_k_TK = {};
  Tensor dqhat, dkhat, dvhat;
  Matrix dqkv;  // filled
};
void linear_heads_backward(const Context&, const LinearHeadsBackward&);

}  // namespace ashlar::kernels
