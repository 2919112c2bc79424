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

struct MoeWeights {
  RouterWeights router;
  Tensor gate_up, down;  // [E, 2F, H], [E, H, F]

  void take(Arena& arena, const ModelSpec& spec, int64_t layer, DType dtype, Part part);
  void for_each(const std::string& prefix, Visitor visit) const;
};

struct MoeOperands {
  RouterOperands router;
  kernels::Operand gate_up, down;
};

struct MoeSaved {
  RouterSaved router;
  kernels::RoutePlan plan;
  Tensor x_rows, gate_up, act;  // [T, H], [T, 2F], [T, F] activation, sorted by expert
  Tensor y_rows;                // [T, H] stream

  static MoeSaved make(Arena& arena, const ModelSpec& spec, const Types& types, int64_t num_tokens);
};

void moe_forward(const kernels::Context&, const ModelSpec&, const Types&, const MoeWeights&,
                 const MoeOperands&, const MoeSaved&, const Tensor& m_TH, const Tensor& r_prev_TR,
                 const Tensor& e_TH);
// Backward of the experts: overwrites dchosen [T] and dx_rows [T, H], which the router's backward
// and the next function go on from.
void experts_backward(const kernels::Context&, const ModelSpec&, const Types&, const MoeOperands&,
                      const MoeSaved&, const Tensor& m_TH, const Tensor& de_TH,
                      const MoeWeights& gradients, const Tensor& dchosen_T,
                      const Tensor& dx_rows_TH, bool accumulate);
// Adds what the experts saw of m, and of skipped tokens, to dm.
void experts_input_backward(const kernels::Context&, const ModelSpec&, const MoeSaved&,
                            const Tensor& de_TH, const Tensor& dx_rows_TH, const Tensor& dm_TH);
// experts_backward, router_backward, experts_input_backward.  Adds to gradients (accumulate: see
// AttentionCall); overwrites dm and dr_prev.
void moe_backward(const kernels::Context&, const ModelSpec&, const Types&, const MoeWeights&,
                  const MoeOperands&, const MoeSaved&, const Tensor& m_TH, const Tensor& r_prev_TR,
                  const Tensor& de_TH, const Tensor& dr_next_TR, const MoeWeights& gradients,
                  const Tensor& dr_prev_TR, const Tensor& dm_TH, bool accumulate);

}  // namespace ashlar::nn
