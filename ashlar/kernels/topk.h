// The element-wise parts of a linear router: softmax over the experts, the choice of k of them for
// each token, the weights of their results, and the gradients of the router's two losses.
//
//   p      = softmax(logits) over E experts;  lse = logsumexp(logits)
//   chosen = the k experts of largest score + bias, ties to the lowest index, in ascending order;
//            the score is p, or the logit itself
//   w_j    = scale p_e of the j-th chosen expert e; renormalized: scale times the softmax over the
//            chosen logits, which is p_e / (sum of the chosen p)
//
// Source   Shazeer et al. 2017, arXiv:1701.06538; Mixtral, arXiv:2401.04088; balancing loss: Fedus
//          et al. 2021, arXiv:2101.03961; z-loss: Zoph et al. 2022, arXiv:2202.08906.
// Shapes   T tokens, E experts, k of them a token, B rows of T / B consecutive tokens each.
// Types    F32 or F64; dlogits also BF16 (input of a product); expert I32.
// Numerics `losses`: partial sums per block of 64 tokens, blocks added in order.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct TopkRule {
  bool choose_by_logits = false;  // the score of choice is the logit, not p
  bool renormalize = true;
  double scale = 1.0;
};

struct TopkForward {
  TopkRule rule;
  Tensor logits_TE, bias_E = {};             // bias: absent if the choice has none
  Tensor p_TE, lse_T, expert_Tk, weight_Tk;  // filled; weight: w
};
void topk_forward(const Context&, const TopkForward&);

// Fills loads[b, e] with the number of times that tokens of row b chose expert e.  Choices of
// padding are kNoClass (moe.h): they are not counted, and their tokens have no loss and no
// gradient.
void row_loads(const Context&, const Tensor& expert_Tk, const Tensor& loads_BE);

// dlogits of sum_tj dweight_tj w_tj + A + Z, with
//   A = sum over tokens t of row b, and e, of balance_scale / S_b loads[b, e] p_te;  S_b: number of
//       tokens of the row, sum_e loads[b, e] / k, including those on other ranks;  loads are
//       constant
//   Z = z_scale sum_t lse_t^2
struct TopkBackward {
  TopkRule rule;
  Tensor dweight_Tk, p_TE, lse_T, expert_Tk, weight_Tk;
  Tensor loads_BE = {};  // absent: A = 0
  double balance_scale = 0.0, z_scale = 0.0;
  Tensor dlogits_TE;  // filled
  Tensor losses_2;    // A and Z are added to it
};
void topk_backward(const Context&, const TopkBackward&);

}  // namespace ashlar::kernels
