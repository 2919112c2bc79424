// The element-wise parts of ZAYA1's router; its products are linear.h's.
//
//   r  = down + b_dn (+ gamma * r_prev)          n = RMSNorm(r; w)
//   s  = GELU(z + b)   exact: x Phi(x)
//   p  = softmax(logits) over E+1 classes;  e* = argmax_i (p_i + bias_i), ties to the lowest index
//   chosen = p_e*
//
// Source   ZAYA1, arXiv 2605.05365 and release (gamma is a vector; selection by biased, weight by
//          unbiased p).
// Shapes   T tokens, R router width, X = E + 1 classes.
// Types    F32 or F64; n, s, dz, dlogits also BF16 (they meet products).
// Numerics parameter gradients: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

// r starts as W_dn m and is finished in place; n and rstd are filled.  r_prev and gamma absent in
// block 0.
void router_mix_forward(const Context&, double eps, const Tensor& r_TR, const Tensor& b_dn_R,
                        const Tensor& r_prev_TR, const Tensor& gamma_R, const Tensor& w_R,
                        const Tensor& n_TR, const Tensor& rstd_T);
// In: dn, and dr_next = what block l+1 sent back (absent in the last block).  Out: dr [T,R] F32|F64
// (the whole gradient of r), dr_low (the same in product type; may be dr itself when the types
// agree), dr_prev = gamma * dr (absent in block 0; may be dr_next itself).  Adds to db_dn, dgamma,
// dw.
void router_mix_backward(const Context&, const Tensor& dn_TR, const Tensor& dr_next_TR,
                         const Tensor& r_TR, const Tensor& r_prev_TR, const Tensor& gamma_R,
                         const Tensor& w_R, const Tensor& rstd_T, const Tensor& dr_TR,
                         const Tensor& dr_low_TR, const Tensor& dr_prev_TR, const Tensor& db_dn_R,
                         const Tensor& dgamma_R, const Tensor& dw_R);

// s = GELU(z + b); z is kept without b.
void bias_gelu_forward(const Context&, const Tensor& z_TR, const Tensor& b_R, const Tensor& s_TR);
// dz = ds * GELU'(z + b); adds to db.
void bias_gelu_backward(const Context&, const Tensor& ds_TR, const Tensor& z_TR, const Tensor& b_R,
                        const Tensor& dz_TR, const Tensor& db_R);

// Fills p [T,X], expert [T] I32 and chosen [T].
void router_select_forward(const Context&, const Tensor& logits_TX, const Tensor& bias_X,
                           const Tensor& p_TX, const Tensor& expert_T, const Tensor& chosen_T);
// dlogits_i = dchosen * p_e (1[i = e] - p_i).
void router_select_backward(const Context&, const Tensor& dchosen_T, const Tensor& p_TX,
                            const Tensor& expert_T, const Tensor& dlogits_TX);

}  // namespace ashlar::kernels
