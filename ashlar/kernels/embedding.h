// Token embedding with ZAYA1's input affine:  x_t = (Emb[id_t] + b) * a.
//
// Shapes   ids [T] I32; emb and demb [V, H]; a b da db [H]; x dx [T, H].
// Types    F32 or F64.
// Cost     2*T*H flop forward, 6*T*H backward; bytes T*H reads and writes.
// Numerics demb: rows of one id are added in token order, whatever the threads.
// Errors   an id outside [0, V) is kData (the batch comes from a file): names the id and the row.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

void embedding_forward(const Context&, const Tensor& ids_T, const Tensor& emb_VH,
                       const Tensor& scale_H, const Tensor& bias_H, const Tensor& x_TH);
// Adds to demb, dscale, dbias.
void embedding_backward(const Context&, const Tensor& ids_T, const Tensor& emb_VH,
                        const Tensor& scale_H, const Tensor& bias_H, const Tensor& dx_TH,
                        const Tensor& demb_VH, const Tensor& dscale_H, const Tensor& dbias_H);

}  // namespace ashlar::kernels
