// Compressed Convolutional Attention: down projections, two stacked causal convolutions on queries
// and keys, QK mean, QK norm with temperature, partial RoPE, a value half delayed by one token,
// causal GQA, output projection.
//
// Source   arXiv 2510.04476 (CCA), 2511.17127 (ZAYA1) and its release.
// Shapes   a [T, H] normed input, o [T, H]; letters as in kernels/qk.h.
// Cost     per token 2[H(N D + 2 K D) + N D H + 2C + 2C D] flop forward besides
//          kernels::attention_forward's.
#pragma once

#include "ashlar/nn/branch.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

// Sizes of one attention: of the whole model, or of the heads on this rank.
struct CcaShape {
  int64_t H, N, K, D;
  int64_t group;    // query heads of the whole model per key head
  int key_copies;   // number of shares that hold these key heads
  int64_t delayed;  // the number of delayed value columns: the last of the K D
  int64_t rotary_dim;
  int64_t window;  // tokens that a query sees, itself included; 0: all before it
  double qk_norm_eps;

  static CcaShape of(const CcaSpec& whole, int64_t hidden_size, const Share& share = {});
  int64_t q_dim() const { return N * D; }
  int64_t kv_dim() const { return K * D; }
  int64_t conv_channels() const { return q_dim() + kv_dim(); }  // C
  int64_t qkv_dim() const { return q_dim() + 2 * kv_dim(); }
  // Two convolutions of two taps reach back two rows of q | k, the delayed value one row.
  ExchangeNeeds needs() const {
    return {.most_strips = {{{2, conv_channels()}, {1, delayed}}},
            .query_cols = q_dim(),
            .key_cols = kv_dim(),
            .value_cols = kv_dim(),
            .head_dim = D,
            .window = window,
            .key_copies = key_copies};
  }
  bool shares_keys() const { return key_copies > 1; }
  Shape conv_matrices() const { return {N + K, D, 2 * D}; }  // grouped convolution, by head
};

struct CcaWeights {
  CcaShape shape;
  Weight qkv;               // [N D + 2 K D, H]: q | k | v current | v delayed, one product
  Weight conv0_w, conv0_b;  // [C, 1, 2], [C]
  Weight conv1_w, conv1_b;  // [C, D, 2], [C]; packed as conv_matrices()
  Weight temp;              // [K]
  Weight o_proj;            // [H, N D]

  void list(const LayerSpec& layer, StoredVisitor visit);
};

struct CcaSaved {
  Tensor qkv;   // [T, N D + 2 K D] activation: q | k | vc | vd
  Tensor y_TC;  // grouped convolution without bias, activation
  // [T, 2 C] activation: the left operand of the grouped convolution.  Absent where that is wider
  // than two z: backward makes it again.
  Tensor columns;
  Tensor halo_z, halo_vd;
  Tensor q_sum;          // [T, K D] wide: see HeadExchange; absent if keys are not shared
  Tensor qhat, khat, v;  // activation type
  Tensor n_q, n_k;       // norms before scaling
  Tensor att, lse;       // [T, N D], [T, N]

  static CcaSaved make(Arena& arena, const CcaShape& shape, const Types& types, const PassShape&);
};

class CcaBranch final : public Branch {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override { weights_.list(layer, visit); }
  BranchNeeds needs() const override {
    return {.forward_parts = 2, .backward_parts = 3, .tokens = weights_.shape.needs()};
  }
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, int part, const Tensor& a_TH, const Carry&,
               const Tensor& o_TH) override;
  void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int) const override { return std::nullopt; }

 private:
  // The parts.
  void project(const kernels::Context&, const Pass&, const Tensor& a_TH) const;
  void attend(const kernels::Context&, const Pass&, const Tensor& o_TH) const;
  void post_backward(const kernels::Context&, const Pass&, const BackwardTensors&) const;
  void attend_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void project_backward(const kernels::Context&, const Pass&, const BackwardTensors&);

  // Temporaries that live from attend_backward to project_backward, in the workspace.
  struct Gradients {
    Tensor dqkv;                         // [T, N D + 2 K D] activation
    Tensor dhalo_z, dhalo_vd;            // shaped as the halos
    std::optional<Arena::Scope> inputs;  // scope of the members below
    Tensor dqhat, dy;                    // [T, N D] wide; [T, C] activation
    Tensor dkhat, dv, dq_sum;            // [T, K D] wide; dq_sum absent if keys are not shared
    Tensor shared;                       // these three as one tensor, for HeadExchange
    kernels::AttentionGradients attention(const Tensor& dout) const {
      return {.dout = dout, .dq = dqhat, .dk = dkhat, .dv = dv};
    }
  };

  CcaWeights weights_;
  Slots<CcaSaved> saved_;
  Gradients gradients_;
};

}  // namespace ashlar::nn
