// ZAYA1's router: down projection, exponential depth averaging, RMSNorm, three-layer MLP with exact
// GELU, softmax over E + 1 classes, top-1 by biased probability.  Its state r flows from block to
// block; so does its gradient.
//
// Source   arXiv 2511.17127, 2605.05365 and the release.
// Shapes   m [T, H]; r [T, R], which is the branch's Carry; X = E + 1.
// Cost     per token 2[R H + 2 R^2 + X R] flop forward.
#pragma once

#include "ashlar/nn/router.h"

namespace ashlar::nn {

struct MlpRouterShape {
  int64_t H, R, X;
  double norm_eps;
};

struct MlpRouterWeights {
  MlpRouterShape shape;
  Weight down_w, down_b;              // [R, H], [R]
  Weight gamma;                       // [R]; absent in block 0
  Weight norm_w;                      // [R]
  Weight fc1_w, fc1_b, fc2_w, fc2_b;  // [R, R], [R]
  Weight out_w;                       // [X, R]
  Weight balancing;                   // [X], a buffer: selection only

  void list(const LayerSpec& layer, StoredVisitor visit);
};

struct MlpRouterSaved {
  Tensor rstd;               // [T]
  Tensor n, s1, s2;          // [T, R] activation
  Tensor z1, z2;             // [T, R] wide, before bias and GELU
  Tensor p, expert, weight;  // [T, X], [T] I32, [T]

  static MlpRouterSaved make(const SavedArenas&, const MlpRouterShape& shape, const Types& types,
                             int64_t num_tokens);
};

class MlpRouter final : public Router {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override { weights_.list(layer, visit); }
  int64_t carry_width() const override { return weights_.shape.R; }
  void lay_out(const SavedArenas&, const Types&, int64_t num_tokens, int slot) override;
  Choice choice(int slot) const override;
  void forward(const kernels::Context&, const Pass&, const Tensor& m_TH,
               const Carry&) const override;
  void backward(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&,
                const Tensor& dweight_Tk, const Tensor& dm_TH) const override;
  const MlpRouterSaved& saved(int slot) const { return saved_[slot]; }

 private:
  MlpRouterWeights weights_;
  Slots<MlpRouterSaved> saved_;
};

}  // namespace ashlar::nn
