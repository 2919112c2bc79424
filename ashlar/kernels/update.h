// Element-wise optimizer passes and reductions over whole tensors.
//
//   AdamW    m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
//            w = (1 - lr*decay) w - lr (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)
//   Muon     m = mu m + g;  x = m, or g + mu m (Nesterov), the input of newton_schulz.h
//            w = (1 - lr*decay) w - lambda x
//
// Source   AdamW: Loshchilov & Hutter 2019, arXiv:1711.05101.  Muon: Jordan et al. 2024; scale:
//          arXiv:2502.16982.
// Types    w g m v: F32 or F64 of one type.  g is scaled by grad_scale while read (clipping, mean
//          over tokens).
// Cost     AdamW reads w g m v and writes w m v: 28 bytes an element in fp32; with PackedRows also
//          the packed forms.  Bandwidth-bound.
// Numerics AdamW and Muon: the bits of an element depend on its inputs alone, not on where its
//          tensor begins or ends, so a tensor may be updated in pieces.  Sums of squares: fp32
//          lanes within blocks of 4096 elements, fp64 over blocks in order.
#pragma once

#include "ashlar/kernels/linear.h"

namespace ashlar::kernels {

// Rows [row, ...) of the G N rows of a weight that products read in packed form.  An update of
// these rows refreshes the packed forms of each block of them while it is in cache.
struct PackedRows {
  const Operand* operand = nullptr;  // null: none
  int64_t row = 0;
};
// Whether an update of `numel` elements can do so; else `pack` does it after all updates.
bool packs_in_update(const Context&, const PackedRows&, int64_t numel);

struct AdamWStep {
  double lr, beta1, beta2, eps, decay;
  int64_t step;  // t, from 1
  double grad_scale = 1.0;
};
struct AdamW {
  AdamWStep step;
  Tensor g;
  Tensor w, m, v;  // updated
  PackedRows packed = {};
};
void adamw(const Context&, const AdamW&);

struct MuonMomentum {
  double mu;
  bool nesterov;
  double grad_scale = 1.0;
  Tensor g;
  Tensor m;  // updated
  Tensor x;  // filled: the Newton-Schulz input; may be g itself
};
void muon_momentum(const Context&, const MuonMomentum&);

struct MuonApply {
  double lr, decay, lambda;
  Tensor x;
  Tensor w;  // updated
  PackedRows packed = {};
};
void muon_apply(const Context&, const MuonApply&);

// Fills `sum`, F64 [1]; infinite or NaN elements make it non-finite.
void sum_of_squares(const Context&, const Tensor& x, const Tensor& sum_1);
// Index of the first non-finite element, or -1: a host result, on the way to an error.  Here x may
// also be BF16.
int64_t first_non_finite(const Context&, const Tensor& x);

}  // namespace ashlar::kernels
