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
  int64_t carry_width() const override { return weights_.router.shape.R; }
  ExchangeNeeds needs() const override { return {}; }
  void lay_out(const SavedArenas&, const Types&, const PassShape&, int slot) override;
  void forward(const kernels::Context&, const Pass&, const Tensor& m_TH, const Carry&,
               const Tensor& e_TH) override;
  void backward(const kernels::Context&, const Pass&, const BackwardTensors&) override;
  std::optional<ExpertLoad> load(int slot) const override;
  const MoeSaved& saved(int slot) const { return saved_[slot]; }

 private:
  MoeWeights weights_;
  Slots<MoeSaved> saved_;
};

}  // namespace ashlar::nn
