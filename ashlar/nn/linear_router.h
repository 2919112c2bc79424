// A linear router: logits = W m, a softmax, and the choice of k experts for each token
// (kernels/topk.h).  Its losses, if a step asks for them (StepLosses):
//
//   balance  coefficient * mean over rows of  E sum_e (c_e / S) P_e,  c_e: choices of expert e
//            among the k S of the row, P_e: mean of p_e over its S tokens; a row of fewer tokens
//            has a proportionally smaller weight.  The losses of all mixtures are added.
//   z        coefficient * mean over tokens of  logsumexp(logits)^2
//
// Padding does not count as tokens.  Both losses are computed as if the step had no padding;
// target_correction and measure of train/trainer.cpp then divide by the real number of tokens.
//
// Source   Shazeer et al. 2017, arXiv:1701.06538; Mixtral, arXiv:2401.04088; Fedus et al. 2021,
//          arXiv:2101.03961; Zoph et al. 2022, arXiv:2202.08906; balancing biases: DeepSeek-V3,
//          arXiv:2412.19437.  docs/recipes.md has the relation to other programs' coefficients.
// Shapes   W [E, H]; k experts of a token.
// Cost     per token 2 E H flop forward.
#pragma once

#include "ashlar/kernels/topk.h"
#include "ashlar/nn/router.h"

namespace ashlar::nn {

struct LinearRouterWeights {
  int64_t H, E, k;
  kernels::TopkRule rule;
  Weight w;     // [E, H]
  Weight bias;  // [E], a buffer used for the choice only; without tensors if there is none

  void list(const LayerSpec& layer, StoredVisitor visit);
};

struct LinearRouterSaved {
  Tensor p, lse;          // [T, E], [T] wide
  Tensor expert, weight;  // [T, k] I32, [T, k]
  Tensor losses;          // [2]
};

class LinearRouter final : public Router {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override { weights_.list(layer, visit); }
  void lay_out(const SavedArenas&, const Types&, int64_t num_tokens, int slot) override;
  Choice choice(int slot) const override { return {saved_[slot].expert, saved_[slot].weight}; }
  void forward(const kernels::Context&, const Pass&, const Tensor& m_TH,
               const Carry&) const override;
  void backward(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&,
                const Tensor& dweight_Tk, const Tensor& dm_TH) const override;
  Tensor losses(int slot) const override { return saved_[slot].losses; }
  const LinearRouterSaved& saved(int slot) const { return saved_[slot]; }

 private:
  Tensor loads_of_rows(const kernels::Context&, const Pass&) const;
  LinearRouterWeights weights_;
  Slots<LinearRouterSaved> saved_;
};

}  // namespace ashlar::nn
