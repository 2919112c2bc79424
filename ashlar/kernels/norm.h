// RMSNorm, alone and fused with the residual merge before it: ZAYA1's, or the plain sum.
//
//   merge    h = (o + bo) * ao + (r + br) * ar                the bias is added before the scale
//            h = o + r                                        without MergeParams
//   norm     y = w * h * rstd,   rstd = (mean(h^2) + eps)^(-1/2)
//
// Source   RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467.  Merge: ZAYA1, arXiv 2511.17127.
// Shapes   T tokens, H width.  o r h y do dr dh dy: [T, H]; ao bo ar br w and their gradients: [H];
//          rstd [T].
// Types    stream (o r h dh dr): F32 or F64.  y, dy and d_o: F32, F64 or BF16 (they meet the
//          products); parameters and their gradients: stream type.
// Cost     forward 8*T*H flop, backward 22*T*H; without MergeParams 5*T*H and 11*T*H (12*T*H where
//          h is recomputed); the merge alone 4*T*H and 8*T*H, plain T*H and nothing; bytes: every
//          tensor once.  Bandwidth-bound.
// Numerics statistics in fp32 with a fixed order of summation; parameter gradients: partial sums
//          per block of 64 tokens, blocks added in order: the same bits for any thread count.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// The parameters of one merge, or the tensors to which their gradients are added.  All four are
// present, or none: the merge is then o + r.
struct MergeParams {
  Tensor hidden_scale_H, hidden_bias_H, residual_scale_H, residual_bias_H;  // ao bo ar br
};

// Fills y and rstd.
void rms_norm_forward(const Context&, double eps, const Tensor& h_TH, const Tensor& w_H,
                      const Tensor& y_TH, const Tensor& rstd_T);

struct RmsNormBackward {
  Tensor dy_TH, h_TH, w_H, rstd_T;
  Tensor dh_in_TH = {};  // added to dh; absent: nothing
  Tensor dh_TH;          // may be dh_in itself
  Tensor dw_H;           // added to
};
void rms_norm_backward(const Context&, const RmsNormBackward&);

// w, y and rstd are present, or none of them: then it is the merge alone, and eps is not read.
struct MergeNormForward {
  double eps;
  Tensor o_TH, r_TH;
  MergeParams params = {};
  Tensor w_H = {};
  Tensor h_TH, y_TH = {}, rstd_T = {};  // filled
};
void merge_norm_forward(const Context&, const MergeNormForward&);

// dh = norm backward of dy (+ dh_in);  d_o = dh * ao;  dr = dh * ar.  Without MergeParams both are
// dh, and o and r are read only where h is absent: given h, they may be absent.  Of the merge alone
// dh is dh_in, and dy, h, rstd, w and dw are absent.
struct MergeNormBackward {
  Tensor dy_TH = {};
  Tensor dh_in_TH = {};  // the gradient that reached h along the stream; absent: none
  Tensor o_TH = {}, r_TH = {};
  Tensor h_TH = {};  // absent: recomputed from o and r
  Tensor rstd_T = {};
  MergeParams params = {};
  Tensor w_H = {};
  Tensor d_o_TH, dr_TH;    // filled; dr may be dh_in itself
  MergeParams grads = {};  // added to
  Tensor dw_H = {};        // added to
};
void merge_norm_backward(const Context&, const MergeNormBackward&);

}  // namespace ashlar::kernels
