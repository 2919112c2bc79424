// Moving tokens to experts and back, top-1 and dropless; SwiGLU between the two products of experts
// or of a dense MLP.
//
//   plan     rows sorted by expert, tokens of one expert in token order; skipped tokens (class E)
//            get no row
//   gather   x_rows[i] = m[token_of_row[i]]
//   combine  e_t = p_t * y_rows[row_of_token[t]];  skip: 0, or p_t * m_t with identity semantics
//   swiglu   act = silu(gate) * up,  gate_up = [gate | up]
//
// Source   ZAYA1, arXiv 2511.17127 section on the mixture of experts; SwiGLU: Shazeer 2020,
//          arXiv:2002.05202.
// Shapes   T tokens, E experts, H width, F expert width; rows [T, .]: the first row_of_expert[E]
//          rows hold tokens, the rest are undefined and never read.
// Types    m, x_rows, act and their gradients: F32, BF16 or F64; y_rows, gate_up, e: F32, F64 or
//          BF16.
// Numerics deterministic; a token's combine reads one row.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

struct RoutePlan {
  Tensor row_of_expert_E1;  // I32 [E+1]: expert e owns rows [row_of_expert[e], row_of_expert[e+1])
  Tensor token_of_row_T;    // I32 [T]
  Tensor row_of_token_T;    // I32 [T]; -1: skipped
  Tensor count_X;           // I64 [E+1]: tokens per class, skip last
};

void route_plan(const Context&, int64_t num_experts, const Tensor& expert_T, const RoutePlan& plan);

void gather_rows(const Context&, const RoutePlan&, const Tensor& m_TH, const Tensor& x_rows_TH);

struct CombineForward {
  const RoutePlan& plan;
  bool identity;  // skipped tokens give p * m instead of 0
  Tensor y_rows_TH, chosen_T, m_TH;
  Tensor e_TH;  // filled
};
void combine_forward(const Context&, const CombineForward&);

// dy_rows[row of t] = p_t de_t;  dchosen_t = <de_t, y_row>;  skipped: dchosen_t = 0, or <de_t, m_t>
// with identity semantics (scatter_rows_add then carries p_t de_t to dm).
struct CombineBackward {
  const RoutePlan& plan;
  bool identity;
  Tensor de_TH, y_rows_TH, chosen_T, m_TH;
  Tensor dy_rows_TH, dchosen_T;  // filled
};
void combine_backward(const Context&, const CombineBackward&);

// dm_t += dx_rows[row of t]; skipped tokens with identity: dm_t += p_t de_t.
struct ScatterRowsAdd {
  const RoutePlan& plan;
  bool identity;
  Tensor dx_rows_TH, chosen_T, de_TH;
  Tensor dm_TH;  // added to
};
void scatter_rows_add(const Context&, const ScatterRowsAdd&);

// Works on the rows that belong to an expert, the first row_of_expert[E]; without row_of_expert on
// all T rows.  Its cost counts all T rows, as that of the products around it: the host does not
// read row_of_expert.
void swiglu_forward(const Context&, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF);
void swiglu_backward(const Context&, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F);

}  // namespace ashlar::kernels
