// RMSNorm, alone and fused with the residual merge before it: ZAYA1's merge, the plain sum, or
// MiniMax's, whose residual is the branch's normed input.
//
//   merge    h = (o + bo) * ao + (r + br) * ar                the bias is added before the scale
//            h = beta o + alpha r                             without MergeParams
//            h = beta o + alpha ((c + v) r rstd_r)            with the norm before the branch, of
//                                                             weight v
//   norm     y = (c + w) * h * rstd,   rstd = (mean(h^2) + eps)^(-1/2)   c: weight_offset, 0 or 1
//
// Source   RMSNorm: Zhang & Sennrich 2019, arXiv:1910.07467.  Merge: ZAYA1, arXiv 2511.17127.
//          Weights that start at 0, with an offset of 1: Qwen3-Next's release.  Normed residuals:
//          MiniMax-01, arXiv 2501.08313.
// Shapes   T tokens, H width.  o r h y do dr dh dy: [T, H]; ao bo ar br w and their gradients: [H];
//          rstd [T].
// Types    stream (r h dh dr, dh_in dy_in): F32, F64 or BF16.  o, y, dy and d_o: F32, F64 or BF16
//          (of products); parameters, their gradients and rstd: F64 with F64, else F32.
// Cost     forward 8*T*H flop, backward 22*T*H; without MergeParams 5*T*H and 11*T*H (12*T*H if h
//          is recomputed); the merge alone 4*T*H and 8*T*H, plain T*H and nothing; with a normed
//          residual 4*T*H more forward, 3*T*H backward; bytes: every tensor once.  Bandwidth-bound.
// Numerics statistics in fp32 of h as it is stored, with a fixed order of summation; dh is rounded
//          to the stream type before a merge passes it on, so that a merge and a norm in one kernel
//          give the bits of two; parameter gradients: partial sums
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
                      const Tensor& y_TH, const Tensor& rstd_T, double weight_offset = 0);

struct RmsNormBackward {
  Tensor dy_TH, h_TH, w_H, rstd_T;
  Tensor dh_in_TH = {};  // added to dh; absent: nothing
  Tensor dy_in_TH = {};  // added to dy; absent: nothing
  Tensor dh_TH;          // may be dh_in or dy_in itself
  Tensor dw_H;           // added to
  double weight_offset = 0;
};
void rms_norm_backward(const Context&, const RmsNormBackward&);

// The factors of a merge without MergeParams.
struct MergeFactors {
  double alpha = 1, beta = 1;
};

// w, y and rstd are all present, or all absent; in the second case only the merge runs, and eps is
// not read.
struct MergeNormForward {
  double eps;
  Tensor o_TH, r_TH;
  MergeParams params = {};
  MergeFactors factors = {};
  Tensor r_norm_H = {}, r_rstd_T = {};  // v and rstd_r; absent: the residual is r itself
  Tensor w_H = {};
  Tensor h_TH, y_TH = {}, rstd_T = {};  // filled
  double weight_offset = 0;
};
void merge_norm_forward(const Context&, const MergeNormForward&);

// dh = norm backward of (dy + dy_in) (+ dh_in);  d_o = dh * ao;  dr = dh * ar.  Without MergeParams
// d_o = beta dh and dr = alpha dh, and o and r are read only if h is absent; if h is present, they
// may be absent.  For the merge alone, dh is dh_in, and dy, h, rstd, w and dw are absent.
//
// If the residual was normed, dr is the gradient of the normed r, and thus dy_in of the norm before
// the branch, which then also adds to the gradient of its weight.  h is then present.
struct MergeNormBackward {
  Tensor dy_TH = {};
  // The gradients of h and of y that arrive along the stream; absent: none.
  Tensor dh_in_TH = {}, dy_in_TH = {};
  Tensor o_TH = {}, r_TH = {};
  Tensor h_TH = {};  // absent: recomputed from o and r
  Tensor rstd_T = {};
  MergeParams params = {};
  MergeFactors factors = {};
  Tensor w_H = {};
  Tensor d_o_TH, dr_TH;    // filled; dr may be dh_in or dy_in itself
  MergeParams grads = {};  // added to
  Tensor dw_H = {};        // added to
  double weight_offset = 0;
};
void merge_norm_backward(const Context&, const MergeNormBackward&);

}  // namespace ashlar::kernels
