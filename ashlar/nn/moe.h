// The mixture of experts of a block: a router (router.h), dropless dispatch to the k experts that
// it chose for each token, SwiGLU experts, and the weighted sum of their results; optionally a
// shared expert that all tokens take, with or without a gate.
//
//   e_t = sum over j of p_tj expert_{e_tj}(m_t)  +  sigmoid(g . m_t) shared(m_t)
//
// Source   ZAYA1, arXiv 2511.17127 (no capacity; the skip class adds 0 or p * m,
//          moe.skip_output); Mixtral, arXiv 2401.04088; shared experts: DeepSeekMoE, arXiv
//          2401.06066, and with a gate Qwen2, arXiv 2407.10671.
// Shapes   m e [T, H]; k experts of a token, R = T k rows; experts [E, 2F, H] (rows 0..F-1 gate,
//          F..2F-1 up) and [E, H, F]; shared expert as mlp.h, gate [1, H].
// Cost     per token k 6 H F flop forward besides the router's, and 6 H F with the shared expert's
//          F.
// Numerics a token's results are added in ascending order of its experts' numbers, then that of the
//          shared expert, whichever rank or device computed them.
#pragma once

#include <array>

#include "ashlar/kernels/moe.h"
#include "ashlar/nn/mlp.h"
#include "ashlar/nn/router.h"

namespace ashlar::nn {

// Sizes of one mixture: of the whole model, or of the part of the width on this rank.
struct MoeShape {
  int64_t H, E, F, k;
  bool skip_identity;  // skipped tokens give p * m instead of 0
  int64_t E_here;      // of the E experts

  static MoeShape of(const MoeSpec& whole, int64_t hidden_size, const Share& share = {});
};

// If ranks share experts: the number of rows that a round has room for, given the rows of this
// rank.
int64_t rows_of_round(int64_t rows, const Share& share);

struct MoeWeights {
  MoeShape shape;
  Share share;
  Weight gate_up, down;  // [E, 2F, H], [E, H, F]
  std::optional<MlpWeights> shared;
  bool gated = false;  // whether the shared expert has a gate
  Weight shared_gate;  // [1, H]

  // The router lists its own tensors at their position.
  void list(const LayerSpec& layer, Router& router, StoredVisitor visit);
};

struct MoeSaved {
  kernels::RoutePlan plan;
  Tensor x_rows, y_rows;  // [R, H] activation; sorted by expert
  // The rows that experts compute on: all rows here, or a round of rows from all ranks.
  struct Room {
    Tensor x, y;           // [rows, H] activation; absent: x_rows and y_rows are these
    Tensor row_of_expert;  // I32 [E here + 1], likewise
    Tensor gate_up, act;   // [rows, 2F], [rows, F] activation
  };
  std::array<Room, 2> rooms;
  MlpSaved shared;
  // [T, H] activation, [T] wide: the shared expert's output before the gate, and the gate before
  // the sigmoid; absent if there is none.
  Tensor shared_out, gate;

  static MoeSaved make(const SavedArenas&, const MoeWeights& weights, const Types& types,
                       int64_t num_tokens);
};

class MoeBranch final : public Branch {
 public:
  explicit MoeBranch(std::unique_ptr<Router> router) : router_(std::move(router)) {}
  void list(const LayerSpec& layer, StoredVisitor visit) override {
    weights_.list(layer, *router_, visit);
  }
  BranchNeeds needs() const override {
    return {.forward_parts = 3, .backward_parts = 3, .carry_width = router_->carry_width()};
  }
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, int part, const Tensor& m_TH, const Carry&,
               const Tensor& e_TH) override;
  void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int slot) const override;
  const MoeSaved& saved(int slot) const { return saved_[slot]; }
  const Router& router() const { return *router_; }

 private:
  // The parts.
  void route(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&);
  void experts(const kernels::Context&, const Pass&) const;
  void receive_results(const kernels::Context&, const Pass&) const;
  void combine(const kernels::Context&, const Pass&, const Tensor& m_TH, const Tensor& e_TH) const;
  void combine_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void experts_backward(const kernels::Context&, const Pass&);
  void round_backward(const kernels::Context&, const Pass&, int index);
  void receive_gradients(const kernels::Context&, const Pass&) const;
  ExpertRound forward_round(int number, int slot) const;
  // index: position in the order of backward; kind: kBackward or kRecompute.
  ExpertRound backward_round(int index, int slot, ExpertRound::Kind kind) const;
  void gate_up_and_act(const kernels::Context&, const Pass&, const ExpertRows&,
                       const MoeSaved::Room&) const;
  void post_gradients(const kernels::Context&, const Pass&, int index) const;
  void results(const kernels::Context&, const Pass&, const ExpertRows&,
               const MoeSaved::Room&) const;
  void products_backward(const kernels::Context&, const Pass&, const ExpertRows&,
                         const MoeSaved::Room&, const Tensor& dact, const Tensor& dgate_up) const;
  void route_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  // Run the shared expert while rows are in flight.
  void shared(const kernels::Context&, const Pass&, const Tensor& m_TH) const;
  void shared_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void gate_backward(const kernels::Context&, const Pass&, const BackwardTensors&) const;
  bool shares_experts() const { return weights_.share.experts.count > 1; }

  // Temporaries that live from part to part of backward, in the workspace.
  struct Gradients {
    Tensor partial;          // [R], or [R + T]: dweights, then dgate; wide
    Tensor dweights, dgate;  // [T, k], [T]
    Tensor dshared;          // [T, H] activation: gradient of the shared expert's input
    Tensor dx_rows;          // [R, H] activation
    std::optional<Arena::Scope> outputs;     // scope of the members below
    Tensor dy_rows;                          // [R, H] activation
    std::array<Tensor, 2> dy_here, dx_here;  // by room, if ranks share experts
  };

  MoeWeights weights_;
  std::unique_ptr<Router> router_;
  Slots<MoeSaved> saved_;
  // By slot, on the host: see ExpertExchange::count.
  std::vector<int> rounds_;
  std::vector<std::vector<int32_t>> counts_;  // empty where experts are not shared
  Gradients gradients_;
};

}  // namespace ashlar::nn
