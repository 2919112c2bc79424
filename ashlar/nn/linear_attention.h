// Linear attention: one product for queries, keys and values, optionally convolved, then mapped to
// features or scaled to unit length; gates; a recurrence with one state for each value head; norm
// and gate of its output; output projection.  The kinds (LinearKind), and what each fixes:
//
//                 decay of            q k v           q scaled by  norm over  gate
//   basic         -                   f(q) f(k) v     dk^-1/2      head       SiLU
//   Lightning     a head, fixed       SiLU of all     1            all heads  sigmoid
//   Retention     a head, fixed       f(q) f(k) v     dk^-1/2      head       SiLU
//   GLA           token and channel   f(q) f(k) v     dk^-1/2      head       SiLU
//   gated delta   token; delta rule   unit(q) unit(k) dk^-1/2      head       SiLU
//
// with f = LinearSpec::map; with conv_taps, q, k and v are first convolved and go through SiLU.
// Basic without mask (LinearSpec::causal) uses kernels/unmasked.h instead of the recurrence.
//
// Source   docs/linear-attention.md: formulas, states and costs.  LASP-2, arXiv:2502.07563;
//          MiniMax-01, arXiv:2501.08313; RetNet, arXiv:2307.08621; GLA, arXiv:2312.06635; gated
//          DeltaNet, arXiv:2412.06464, Qwen3-Next.
// Shapes   a [T, H] normed input, o [T, H]; K key heads, V value heads, letters as in
//          kernels/recurrence.h.
// Cost     per token 2 H (2 K dk + 3 V dv) flop forward besides gates, convolution and recurrence.
#pragma once

#include "ashlar/kernels/gated_norm.h"
#include "ashlar/kernels/linear_heads.h"
#include "ashlar/nn/branch.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::nn {

// Sizes and kind of a mixer, for the heads on this rank.
struct LinearShape {
  LinearKind kind = LinearKind::kBasic;
  kernels::LinearHeadsShape heads{};
  kernels::Decay decay = kernels::Decay::kNone;
  kernels::GatedNormShape norm{};
  double scale = 1.0;  // on q
  int64_t taps = 0;    // taps of the convolution; 0: none
  bool causal = true;
  std::vector<double> log_decay_V;  // logarithms of a fixed decay, else empty

  static LinearShape of(const LinearSpec& whole, double norm_eps, const Share& share);
  int64_t key_dim() const { return heads.K * heads.dk; }
  int64_t value_dim() const { return heads.H * heads.dv; }
  int64_t decay_dim() const {
    return decay == kernels::Decay::kChannel ? heads.H * heads.dk : heads.H;
  }
  bool delta() const { return kind == LinearKind::kGatedDelta; }
  bool gated() const { return kind == LinearKind::kGla || delta(); }  // decays depend on tokens
  kernels::RecurrenceShape recurrence() const {
    return {heads.K, heads.H, heads.dk, heads.dv, scale};
  }
  int64_t ways() const { return causal ? 1 : 2; }  // directions from which states reach a chunk
  Shape states(int64_t num) const { return {num, heads.H, heads.dk, heads.dv}; }
};

struct LinearWeights {
  LinearShape shape;
  Weight qkv;             // [2 K dk + V dv, H]: q | k | v
  Weight conv;            // [2 K dk + V dv, 1, taps]
  Weight decay_down;      // GLA: [16, H]
  Weight decay_up;        // GLA: [V dk, 16]
  Weight decay_bias;      // GLA: [V dk]
  Weight ba;              // delta rule: [2 V, H]: b | a
  Weight a_log, dt_bias;  // delta rule: [V]
  Weight gate;            // [V dv, H]
  Weight norm;            // [dv], or [V dv] over all heads
  Weight o_proj;          // [H, V dv]

  void list(const LayerSpec& layer, StoredVisitor visit);
};

struct LinearSaved {
  Tensor qkv;                    // [T, 2 K dk + V dv] activation
  Tensor halo, convolved;        // [num_halos, taps - 1, ..] wide, [T, ..] activation; or absent
  Tensor qhat, khat, vhat;       // activation
  Tensor rstd_q, rstd_k;         // [T, K], with unit keys
  Tensor low, gates;             // GLA: [T, 16] activation, [T, V dk]; delta rule: gates [T, 2 V]
  Tensor log_decay, beta;        // by token; beta: delta rule
  Tensor kept;                   // states (kernels/recurrence.h)
  Tensor att;                    // [T, V dv] wide
  Tensor squares;                // [T, groups]
  Tensor z;                      // [T, V dv] activation
  Tensor y;                      // [T, V dv] activation
  Tensor entering, transitions;  // lasting; if other ranks hold the chunks before

  static LinearSaved make(const SavedArenas& arenas, const LinearShape& shape, const Types& types,
                          const PassShape& pass);
};

class LinearBranch final : public Branch {
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
  void project(const kernels::Context&, const Pass&, const Tensor& a_TH);
  void recur(const kernels::Context&, const Pass&, const Tensor& a_TH, const Tensor& o_TH);
  void output_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void recur_backward(const kernels::Context&, const Pass&, const BackwardTensors&);

  // The gradients that the recurrence returns, wide type.
  struct StateGradients {
    Tensor dq, dk, dv, dlog_decay, dbeta;
  };
  void gates_forward(const kernels::Context&, const Pass&, const Tensor& a_TH) const;
  // Adds to da.
  void gates_backward(const kernels::Context&, const Pass&, const BackwardTensors&,
                      const StateGradients&, const Tensor& da) const;
  void heads_backward(const kernels::Context&, const Pass&, const StateGradients&,
                      const Tensor& dqkv) const;
  Tensor halo(const Pass& pass, const Tensor& whole) const;
  kernels::Recurrence recurrence(const Pass&) const;
  // Fill maps_ with what the chunks here do to states, or to their gradients.
  void find_maps(const kernels::Context&, const Pass&, const Tensor& transition) const;
  void find_backward_maps(const kernels::Context&, const Pass&) const;

  // Temporaries that live from part to part, in the workspace.
  struct Gradients {
    Tensor dz, datt;
  };

  LinearWeights weights_;
  Slots<LinearSaved> saved_;
  StateMaps maps_;
  Gradients gradients_;
};

}  // namespace ashlar::nn
