// Token embedding, plain:  x_t = Emb[id_t],  or with ZAYA1's input affine:  (Emb[id_t] + b) * a.
//
// Shapes   ids [T] I32; emb and demb [V, H]; a b da db [H]; x dx [T, H].
// Types    F32 or F64.
// Cost     2*T*H flop forward, 6*T*H backward; plain 0 and T*H; bytes T*H reads and writes.
// Numerics demb: rows of one id are added in token order, for any number of threads.
// Limits   ids are in [0, V): a caller that read them from a file has checked them.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// a and b of the formula are scale and bias: both present, or both absent, with their gradients.
struct EmbeddingForward {
  Tensor ids_T, emb_VH;
  Tensor scale_H = {}, bias_H = {};
  Tensor x_TH;  // filled
};
void embedding_forward(const Context&, const EmbeddingForward&);

struct EmbeddingBackward {
  Tensor ids_T, emb_VH;
  Tensor scale_H = {}, bias_H = {};
  Tensor dx_TH;
  Tensor demb_VH;         // added to
  int32_t fixed_id = -1;  // id whose row gets no gradient, as padding_idx in PyTorch; -1: none
  Tensor dscale_H = {}, dbias_H = {};  // added to
};
void embedding_backward(const Context&, const EmbeddingBackward&);

}  // namespace ashlar::kernels
