// One SwiGLU for all tokens: the feed-forward of a dense block, and the shared expert of a mixture.
//
//   e = (silu(gate m) * (up m)) down^T
//
// Source   SwiGLU: Shazeer 2020, arXiv:2002.05202; Llama, arXiv:2302.13971.
// Shapes   m e [T, H]; gate | up [2F, H], down [H, F].
// Cost     per token 6 H F flop forward.
#pragma once

#include "ashlar/nn/branch.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

struct MlpWeights {
  int64_t H, F;          // F: width on this rank
  Weight gate_up, down;  // [2F, H], [H, F]

  // width: that of the whole model; grain: the grain that cuts it.
  void list(const LayerSpec& layer, int64_t width, Grain grain, StoredVisitor visit);
};

struct MlpSaved {
  Tensor gate_up, act;  // [T, 2F], [T, F] activation

  static MlpSaved make(Arena& arena, const MlpWeights& weights, const Types& types,
                       int64_t num_tokens);
};

// Fills all of `saved`, which backward reads.
void mlp_inner(const kernels::Context&, const Pass&, const MlpWeights&, const MlpSaved&,
               const Tensor& m_TH);
// Computes e from what mlp_inner filled.
void mlp_output(const kernels::Context&, const Pass&, const MlpWeights&, const MlpSaved&,
                const Tensor& e_TH);
// The parts of backward.  The first fills dm (see Pass::add_to_output) and dgate_up [T, 2F],
// activation type, which the second reads.
void mlp_backward_inputs(const kernels::Context&, const Pass&, const MlpWeights&, const MlpSaved&,
                         const Tensor& m_TH, const Tensor& de_TH, const Tensor& dm_TH,
                         const Tensor& dgate_up);
// Adds to the gradients (see Pass::add_to_gradients).
void mlp_backward_weights(const kernels::Context&, const Pass&, const MlpWeights&, const MlpSaved&,
                          const Tensor& m_TH, const Tensor& de_TH, const Tensor& dgate_up);

class MlpBranch final : public Branch {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override;
  BranchNeeds needs() const override { return {.backward_parts = 2}; }
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, int part, const Tensor& m_TH, const Carry&,
               const Tensor& e_TH) override;
  void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int) const override { return std::nullopt; }

 private:
  MlpWeights weights_;
  Slots<MlpSaved> saved_;
  Tensor dgate_up_;  // [T, 2F] activation, lives from part to part
};

}  // namespace ashlar::nn
