// RMSNorm, alone and fused with ZAYA1's residual merge.
//
//   merge    h = (o + bo) * ao + (r + br) * ar                the bias is added before the scale
//   norm     y = w * h * rstd,   rstd = (mean(h^2) + eps)^(-1/2)
//
// Source   RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467.  Merge: ZAYA1, arXiv 2511.17127.
// Shapes   T tokens, H width.  o r h y do dr dh dy: [T, H]; ao bo ar br w and their gradients: [H];
//          rstd [T].
// Types    stream (o r h dh dr): F32 or F64.  y, dy and d_o: F32, F64 or BF16 (they meet the
//          products); parameters and their gradients: stream type.
// Cost     forward 8*T*H flop, backward 22*T*H; bytes: every tensor once.  Bandwidth-bound.
// Numerics statistics in fp32 with a fixed order of summation; parameter gradients: partial sums
// per
//          block of 64 tokens, blocks added in order: the same bits for any thread count.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct MergeParams {  // of one merge; as gradients: where they are added
  Tensor hidden_scale_H, hidden_bias_H, residual_scale_H, residual_bias_H;  // ao bo ar br
};

// Fills y and rstd.
void rms_norm_forward(const Context&, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T);
// Adds to dw.  dh = norm backward of dy (+ dh_in if present; dh may be dh_in itself).
void rms_norm_backward(const Context&, const Tensor& dy_TH, const Tensor& h_TH, const Tensor& w_H,
                       const Tensor& rstd_T, const Tensor& dh_in_TH, const Tensor& dh_TH,
                       const Tensor& dw_H);

// Fills h, y and rstd.
void merge_norm_forward(const Context&, double eps, const Tensor& o_TH, const Tensor& r_TH,
                        const MergeParams&, const Tensor& w_H, const Tensor& h_TH,
                        const Tensor& y_TH, const Tensor& rstd_T);
// dh = norm backward of dy (+ dh_in, the gradient that reached h along the stream; absent: none).
// d_o = dh * ao and dr = dh * ar (dr may be dh_in itself); adds to dw and to the merge's gradients.
// h is recomputed from o and r where it is absent.
void merge_norm_backward(const Context&, const Tensor& dy_TH, const Tensor& dh_in_TH,
                         const Tensor& o_TH, const Tensor& r_TH, const Tensor& h_TH,
                         const Tensor& rstd_T, const MergeParams&, const Tensor& w_H,
                         const Tensor& d_o_TH, const Tensor& dr_TH, const MergeParams& grads,
                         const Tensor& dw_H);

}  // namespace ashlar::kernels
