// The mixture of experts of a block: router, top-1 dropless dispatch, SwiGLU experts, weighted
// return.
//
// Source   arXiv 2511.17127.  No auxiliary loss, no capacity; the skip class adds 0 or p * m
//          (model.skip_output).
// Shapes   m e [T, H]; experts [E, 2F, H] (rows 0..F-1 gate, F..2F-1 up) and [E, H, F].
// Cost     per token 6 H F flop forward besides the router's.
#pragma once

#include "ashlar/kernels/moe.h"
#include "ashlar/nn/exchange.h"
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

  static MoeSaved make(Arena& arena, const MoeWeights& weights, const Types& types,
                       int64_t num_tokens);
};

// Fills e and saved.  r_prev: as in router.h.
void moe_forward(const kernels::Context&, const Types&, ExpertExchange&, const MoeWeights&,
                 const MoeSaved&, const Tensor& m_TH, const Tensor& r_prev_TR, const Tensor& e_TH);
// Adds to the gradients (accumulate: see AttentionCall); overwrites dm and dr_prev.
void moe_backward(const kernels::Context&, const Types&, ExpertExchange&, const MoeWeights&,
                  const MoeSaved&, const Tensor& m_TH, const Tensor& r_prev_TR, const Tensor& de_TH,
                  const Tensor& dr_next_TR, const Tensor& dr_prev_TR, const Tensor& dm_TH,
                  bool accumulate);

}  // namespace ashlar::nn
