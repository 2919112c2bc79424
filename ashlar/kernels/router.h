// The element-wise parts of ZAYA1's router; its products are those of linear.h.
//
//   r  = down + b_dn (+ gamma * r_prev)          n = RMSNorm(r; w)
//   s  = GELU(z + b)   exact: x Phi(x)
//   p  = softmax(logits) over E+1 classes;  e* = argmax_i (p_i + bias_i), ties to the lowest index
//   weight = p_e*
//
// Source   ZAYA1, arXiv 2605.05365 and release (gamma is a vector; selection by biased, weight by
//          unbiased p).
// Shapes   T tokens, R router width, X = E + 1 classes.
// Types    F32 or F64; n, s, dz, dlogits also BF16 (inputs of products).
// Numerics parameter gradients: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct RouterMixForward {
  double eps;
  Tensor r_TR;  // W_dn m on entry, completed in place
  Tensor b_dn_R;
  Tensor r_prev_TR = {}, gamma_R = {};  // absent in block 0
  Tensor w_R;
  Tensor n_TR, rstd_T;  // filled
};
void router_mix_forward(const Context&, const RouterMixForward&);

struct RouterMixBackward {
  Tensor dn_TR;
  Tensor dr_next_TR = {};  // gradient from block l+1; absent in the last block
  Tensor r_TR;
  Tensor r_prev_TR = {}, gamma_R = {};  // absent in block 0
  Tensor w_R, rstd_T;
  Tensor dr_TR;            // filled, F32 or F64: the whole gradient of r
  Tensor dr_low_TR;        // filled: dr in product type; may be dr itself when the types agree
  Tensor dr_prev_TR = {};  // filled: gamma * dr; may be dr_next itself; absent in block 0
  Tensor db_dn_R, dw_R;    // added to
  Tensor dgamma_R = {};    // added to; absent in block 0
};
void router_mix_backward(const Context&, const RouterMixBackward&);

// s = GELU(z + b); z is kept without b.
void bias_gelu_forward(const Context&, const Tensor& z_TR, const Tensor& b_R, const Tensor& s_TR);
// dz = ds * GELU'(z + b)
struct BiasGeluBackward {
  Tensor ds_TR, z_TR, b_R;
  Tensor dz_TR;  // filled
  Tensor db_R;   // added to
};
void bias_gelu_backward(const Context&, const BiasGeluBackward&);

struct RouterSelectForward {
  Tensor logits_TX, bias_X;
  Tensor p_TX, expert_T, weight_T;  // filled; expert is I32
};
void router_select_forward(const Context&, const RouterSelectForward&);

// dlogits_i = dweight * p_e (1[i = e] - p_i); 0 for padding, whose choice is kNoClass (moe.h)
struct RouterSelectBackward {
  Tensor dweight_T, p_TX, expert_T;
  Tensor dlogits_TX;  // filled
};
void router_select_backward(const Context&, const RouterSelectBackward&);

}  // namespace ashlar::kernels
