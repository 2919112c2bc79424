// Moves tokens to the k experts of each and back, dropless; SwiGLU between the two products of
// experts or of a dense MLP; the addition of a shared expert's output.
//
//   plan     rows sorted by expert, tokens of one expert in token order; skipped choices (class E)
//            and those of padding (kNoClass) get no row, and the latter are not counted
//   gather   x_rows[i] = m[token_of_row[i]]
//   combine  e_t = sum over j of p_tj * y_rows[row_of_token[t, j]], in the order of j;
//            skip: adds nothing, or p_tj * m_t with identity semantics
//   swiglu   act = silu(gate) * up,  gate_up = [gate | up]
//   shared   e_t += sigmoid(z_t) s_t, or s_t without a gate
//
// Source   ZAYA1, arXiv 2511.17127 section on the mixture of experts; top-k: Shazeer et al. 2017,
//          arXiv:1701.06538; SwiGLU: Shazeer 2020, arXiv:2002.05202; gated shared expert: Qwen2
//          report, arXiv:2407.10671.
// Shapes   T tokens, k experts of each, E experts, H width, F expert width; rows [R, .], R = T k:
//          the first row_of_expert[E] rows hold tokens, the rest are undefined and never read.
// Types    m, x_rows, act and their gradients: F32, BF16 or F64; y_rows, gate_up, e: F32, F64 or
//          BF16.
// Numerics deterministic: a token's results are added in the order of j, whichever device computed
//          them.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

// The choice of a token of padding: it has no row, no load, no loss and no gradient.
inline constexpr int32_t kNoClass = -1;
// Overwrites the choices of the sequence's padding.
void leave_out_padding(const Context&, const Sequence&, const Tensor& expert_Tk);

struct RoutePlan {
  Tensor row_of_expert_E1;  // I32 [E+1]: expert e owns rows [row_of_expert[e], row_of_expert[e+1])
  Tensor token_of_row_R;    // I32 [R]
  Tensor row_of_token_Tk;   // I32 [T, k]; -1: skipped, or padding
  Tensor count_X;           // I64 [E+1]: choices of each class, skip last, without padding
};

void route_plan(const Context&, int64_t num_experts, const Tensor& expert_Tk,
                const RoutePlan& plan);

void gather_rows(const Context&, const RoutePlan&, const Tensor& m_TH, const Tensor& x_rows_RH);

struct CombineForward {
  const RoutePlan& plan;
  bool identity;  // skipped choices give p * m instead of 0
  Tensor y_rows_RH, weight_Tk, m_TH;
  Tensor e_TH;  // filled
};
void combine_forward(const Context&, const CombineForward&);

// dy_rows[row of t, j] = p_tj de_t;  dweight_tj = <de_t, y of the row>;  skipped: dweight_tj = 0,
// or <de_t, m_t> with identity semantics (scatter_rows_add then carries p_tj de_t to dm).
struct CombineBackward {
  const RoutePlan& plan;
  bool identity;
  Tensor de_TH, y_rows_RH, weight_Tk, m_TH;
  Tensor dy_rows_RH, dweight_Tk;  // filled
};
void combine_backward(const Context&, const CombineBackward&);

// dm_t += shared_t + sum over j, in its order, of dx_rows[row of t, j]; skipped choices with
// identity: dm_t += p_tj de_t.
struct ScatterRowsAdd {
  const RoutePlan& plan;
  bool identity;
  Tensor shared_TH = {};  // absent: nothing
  Tensor dx_rows_RH, weight_Tk, de_TH;
  Tensor dm_TH;  // added to
};
void scatter_rows_add(const Context&, const ScatterRowsAdd&);

// e_t += sigmoid(z_t) s_t; without z, s_t.  s and e: F32, F64 or BF16; z of the stream's type.
void shared_add_forward(const Context&, const Tensor& z_T, const Tensor& s_TH, const Tensor& e_TH);
// ds_t = sigmoid(z_t) de_t;  dz_t = sigmoid'(z_t) <de_t, s_t>.
struct SharedAddBackward {
  Tensor de_TH;
  Tensor z_T, s_TH;
  Tensor ds_TH, dz_T;  // filled
};
void shared_add_backward(const Context&, const SharedAddBackward&);

// Works on the rows that belong to an expert, the first row_of_expert[E]; without row_of_expert on
// all T rows.  Cost counts all T rows, as in the products around it, since the host does not read
// row_of_expert.
void swiglu_forward(const Context&, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF);
void swiglu_backward(const Context&, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F);

}  // namespace ashlar::kernels
