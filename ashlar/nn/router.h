// ZAYA1's router: down projection, exponential depth averaging, RMSNorm, three-layer MLP with exact
// GELU, softmax over E + 1 classes, top-1 by biased probability.  Its state r flows from block to
// block; so does its gradient.
//
// Source   arXiv 2511.17127, 2605.05365 and the release.
// Shapes   m [T, H]; r r_prev [T, R]; X = E + 1.
// Cost     per token 2[R H + 2 R^2 + X R] flop forward.
#pragma once

#include "ashlar/kernels/linear.h"
#include "ashlar/nn/parameters.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

struct RouterWeights {
  Tensor down_w, down_b;              // [R, H], [R]
  Tensor gamma;                       // [R]; absent in block 0
  Tensor norm_w;                      // [R]
  Tensor fc1_w, fc1_b, fc2_w, fc2_b;  // [R, R], [R]
  Tensor out_w;                       // [X, R]
  Tensor balancing;                   // [X], a buffer: selection only; absent in gradients

  void take(Arena& arena, const ModelSpec& spec, int64_t layer, DType dtype, Part part);
  void for_each(const std::string& prefix, Visitor visit) const;
};

struct RouterOperands {
  kernels::Operand down, fc1, fc2, out;
};

struct RouterSaved {
  Tensor r, rstd;            // [T, R] stream, [T]
  Tensor n, s1, s2;          // [T, R] activation
  Tensor z1, z2;             // [T, R] stream, before bias and GELU
  Tensor p, expert, chosen;  // [T, X], [T] I32, [T]

  static RouterSaved make(Arena& arena, const ModelSpec& spec, const Types& types,
                          int64_t num_tokens);
};

// r_prev absent in block 0.
void router_forward(const kernels::Context&, const ModelSpec&, const Types&, const RouterWeights&,
                    const RouterOperands&, const RouterSaved&, const Tensor& m_TH,
                    const Tensor& r_prev_TR);
// dr_next: from block l+1, absent in the last block; dr_prev: to block l-1, absent in block 0.
// Overwrites dm.  accumulate: see AttentionCall.
void router_backward(const kernels::Context&, const ModelSpec&, const Types&, const RouterWeights&,
                     const RouterOperands&, const RouterSaved&, const Tensor& m_TH,
                     const Tensor& r_prev_TR, const Tensor& dchosen_T, const Tensor& dr_next_TR,
                     const RouterWeights& gradients, const Tensor& dr_prev_TR, const Tensor& dm_TH,
                     bool accumulate);

}  // namespace ashlar::nn
