// RMSNorm of the output of linear attention's heads, times a gate.
//
//   y = w * x * rstd * g(z),   rstd = (mean(x^2) + eps)^(-1/2) over a group of channels
//   g: sigmoid (MiniMax) or SiLU (Retention, GLA, gated DeltaNet); or 1, without z
//
// A group is a head, or all heads together (MiniMax's).  In the second case ranks that hold other
// heads of the same tokens add up the sums between the two halves (nn::LayerSums).
//
//   squares = sum x^2         dots = sum dy g(z) w x         over the channels of a group
//   dx = rstd (dy g(z) w - x rstd^2 dots / mean_over)
//
// Source   Retentive Network, arXiv:2307.08621; MiniMax-01, arXiv:2501.08313; Qwen3-Next's release.
// Shapes   T tokens, G groups of D channels on this rank: heads; or one group of all its channels.
//          x y dx dy [T, G D]; z dz [T, G D] (a strided Matrix); w dw [D] or [G D] (shared_weight);
//          squares dots [T, G].
// Types    x w squares dots, dx dw: F32 or F64, one type; y dy z dz: also BF16.
// Cost     per element: squares 2 flop, forward 8, dots 8, backward 16.  Bandwidth-bound.
// Numerics statistics in fp32 with a fixed order of summation; dw: partial sums per block of 64
//          tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

enum class OutputGate : uint8_t { kNone, kSigmoid, kSilu };

struct GatedNormShape {
  int64_t G, D;
  int64_t mean_over;          // channels of a group in the whole model: D, or more if it is cut
  bool shared_weight = true;  // [D], the same for every group; else [G D]
  double eps = 0;
  OutputGate gate = OutputGate::kSilu;
};

// Fills squares_TG: the sum of x^2 over the channels of a group on this rank.
void gated_norm_squares(const Context&, const GatedNormShape&, const Tensor& x,
                        const Tensor& squares_TG);

struct GatedNormForward {
  GatedNormShape shape;
  Tensor x, squares_TG;  // squares: summed over all ranks that hold channels of the group
  Tensor w;
  Matrix z = {};  // absent (no columns) if and only if OutputGate::kNone
  Tensor y;       // filled
};
void gated_norm_forward(const Context&, const GatedNormForward&);

struct GatedNormBackward {
  GatedNormShape shape;
  Tensor x, squares_TG;
  Tensor w;
  Matrix z = {};
  Tensor dy;
  Tensor dots_TG;  // filled by gated_norm_dots; then summed as squares, and read
  Tensor dx;       // filled
  Matrix dz = {};  // filled; absent as z
  Tensor dw;       // added to
};
// Fills dots_TG over the channels of a group on this rank; does not use dx, dz and dw.
void gated_norm_dots(const Context&, const GatedNormBackward&);
void gated_norm_backward(const Context&, const GatedNormBackward&);

}  // namespace ashlar::kernels
