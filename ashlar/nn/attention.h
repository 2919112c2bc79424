// Softmax attention: one product for queries, keys and values, QK norm or none, RoPE, causal
// attention of N query heads over K key heads, optionally a gate on its output, and the output
// projection.  K = N is multi-head attention, K < N grouped-query attention.
//
//   o = (att * sigmoid(gate)) Wo^T,  gate = a Wg^T, columns of the same product     with a gate
//
// The projections of queries, keys, values and gate, and that of the output, may have a bias.
//
// Source   Vaswani et al. 2017, arXiv:1706.03762; grouped queries: Ainslie et al. 2023,
//          arXiv:2305.13245; Llama 3, arXiv:2407.21783; Qwen3, arXiv:2505.09388; gated:
//          Qwen3-Next's release; biases: Qwen2, arXiv:2407.10671.
// Shapes   a [T, H] normed input, o [T, H]; letters as in kernels/rope.h.
// Cost     per token 2 H (2 N D + 2 K D) flop forward besides kernels::attention_forward's, with a
//          gate 2 H N D more.
#pragma once

#include "ashlar/kernels/rope.h"
#include "ashlar/nn/branch.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

struct AttentionWeights {
  kernels::HeadsShape shape;  // shape of the heads on this rank
  int key_copies;             // number of shares that hold these key heads
  int64_t window;             // tokens that a query sees, itself included; 0: all before it
  Weight qkv;                 // [(N + 2 K) D, H]: q | k | v; with a gate [(2 N + 2 K) D, H]
  Weight q_norm, k_norm;      // [D]; without tensors if queries and keys are not normed
  Weight o_proj;              // [H, N D]
  // [N D], [K D] twice, [N D], [H]; without tensors if there are none.
  Weight q_bias, k_bias, v_bias, gate_bias, o_bias;

  void list(const LayerSpec& layer, StoredVisitor visit);
  bool has_norms() const { return bool(q_norm.value); }
  bool has_gate() const { return shape.gated; }
  // The type of the fused product: where a bias is added to it, it is rounded only afterwards.
  DType qkv_type(const Types& types) const { return q_bias.value ? types.wide : types.activation; }
  // Calls use(bias, first column of the fused product that it is added to).
  template <typename Use>
  void for_each_bias(Use use) const {
    const int64_t keys = shape.N * shape.D;
    if (q_bias.value) use(q_bias, 0), use(k_bias, keys), use(v_bias, shape.values_begin());
    if (gate_bias.value) use(gate_bias, shape.gate_begin());
  }
};

struct AttentionSaved {
  Tensor qkv;             // [T, width of the product] of qkv_type; absent without norms and gate
  Tensor rstd_q, rstd_k;  // [T, N], [T, K]; absent without norms
  Tensor qhat, khat, v;   // activation type
  Tensor att, lse;        // [T, N D], [T, N]

  static AttentionSaved make(Arena& arena, const AttentionWeights& weights, const Types& types,
                             int64_t num_tokens);
};

class AttentionBranch final : public Branch {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override { weights_.list(layer, visit); }
  BranchNeeds needs() const override;
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, int part, const Tensor& a_TH, const Carry&,
               const Tensor& o_TH) override;
  void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int) const override { return std::nullopt; }

 private:
  // The parts.
  void project(const kernels::Context&, const Pass&, const Tensor& a_TH) const;
  void attend(const kernels::Context&, const Pass&, const Tensor& o_TH) const;
  Tensor gated(const kernels::Context&, const Pass&, const Tensor& room) const;
  void post_backward(const kernels::Context&, const Pass&, const BackwardTensors&) const;
  void attend_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void project_backward(const kernels::Context&, const Pass&, const BackwardTensors&);

  // Temporaries that live from attend_backward to project_backward, in the workspace.
  struct Gradients {
    Tensor dqkv;                         // [T, width of the product] activation
    std::optional<Arena::Scope> inputs;  // scope of the members below
    Tensor dqhat, dkeys;                 // [T, N D]; [2, T, K D]: keys, values
    Tensor dkhat() const { return dkeys.slice(0, 1).view({dkeys.shape[1], dkeys.shape[2]}); }
    Tensor dv() const { return dkeys.slice(1, 2).view({dkeys.shape[1], dkeys.shape[2]}); }
  };

  AttentionWeights weights_;
  Slots<AttentionSaved> saved_;
  Gradients gradients_;
};

}  // namespace ashlar::nn
