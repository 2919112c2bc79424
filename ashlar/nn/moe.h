// The mixture of experts of a block: router, top-1 dropless dispatch, SwiGLU experts, weighted
// return.
//
// Source   arXiv 2511.17127.  No auxiliary loss, no capacity; the skip class adds 0 or p * m
//          (model.skip_output).
// Shapes   m e [T, H]; experts [E, 2F, H] (rows 0..F-1 gate, F..2F-1 up) and [E, H, F].
// Cost     per token 6 H F flop forward besides the router's.
#pragma once

#include "ashlar/kernels/moe.h"
#include "ashlar/nn/router.h"

namespace ashlar::nn {

// Extents of one mixture: those of the whole model, or of the part of the width that stands here.
struct MoeShape {
  int64_t H, E, F;
  bool skip_identity;  // skipped tokens give p * m instead of 0

  static MoeShape of(const MoeSpec& whole, int64_t hidden_size, const Share& share = {});
};

struct MoeWeights {
  MoeShape shape;
  RouterWeights router;
  Weight gate_up, down;  // [E, 2F, H], [E, H, F]

  void list(const LayerSpec& layer, StoredVisitor visit);
};

struct MoeSaved {
  RouterSaved router;
  kernels::RoutePlan plan;
  Tensor x_rows, gate_up, act;  // [T, H], [T, 2F], [T, F] activation, sorted by expert
  Tensor y_rows;                // [T, H] stream

  static MoeSaved make(const SavedArenas&, const MoeWeights& weights, const Types& types,
                       int64_t num_tokens);
};

class MoeBranch final : public Branch {
 public:
  void list(const LayerSpec& layer, StoredVisitor visit) override { weights_.list(layer, visit); }
  BranchNeeds needs() const override {
    return {.forward_parts = 3, .backward_parts = 3, .carry_width = weights_.router.shape.R};
  }
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, int part, const Tensor& m_TH, const Carry&,
               const Tensor& e_TH) override;
  void backward(const kernels::Context&, const Pass&, int part, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int slot) const override;
  const MoeSaved& saved(int slot) const { return saved_[slot]; }

 private:
  // The parts.
  void route(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&) const;
  void experts(const kernels::Context&, const Pass&) const;
  void combine(const kernels::Context&, const Pass&, const Tensor& m_TH, const Tensor& e_TH) const;
  void combine_backward(const kernels::Context&, const Pass&, const BackwardTensors&);
  void experts_backward(const kernels::Context&, const Pass&);
  void route_backward(const kernels::Context&, const Pass&, const BackwardTensors&);

  // What lives from part to part of backward, in the workspace.
  struct Gradients {
    Tensor dchosen, dx_rows;              // [T] stream, [T, H] activation
    std::optional<Arena::Scope> outputs;  // of what follows
    Tensor dy_rows;                       // [T, H] activation
  };

  MoeWeights weights_;
  Slots<MoeSaved> saved_;
  Gradients gradients_;
};

}  // namespace ashlar::nn
