#include <algorithm>
#include <cmath>
#include <cstring>

#include "ashlar/kernels/cpu/moe_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// The rows that belong to an expert: the first ones, of num_rows; without experts all.
int64_t rows_in_use(const Tensor& row_of_expert_E1, int64_t num_rows) {
  if (!row_of_expert_E1) return num_rows;
  const int64_t rows = row_of_expert_E1.span<const int32_t>().back();
  ASHLAR_ASSERT(rows >= 0 && rows <= num_rows);
  return rows;
}

template <typename T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <typename T>
void combine_rows(const CombineArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, row = x.row_of_token[t]; i < x.H; ++i) {
      T output = 0;
      if (row >= 0)
        output = x.p[t] * x.y_rows[row * x.H + i];
      else if (x.identity)
        output = x.p[t] * x.m[t * x.H + i];
      x.e.set(t * x.H + i, output);
    }
}

template <typename T>
void combine_gradient_rows(const CombineGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = x.row_of_token[t];
    T dp = 0;
    for (int64_t i = 0, at = t * x.H; i < x.H; ++i, ++at) {
      if (row >= 0) {
        dp += x.de[at] * x.y_rows[row * x.H + i];
        x.dy_rows.set(row * x.H + i, x.p[t] * x.de[at]);
      } else if (x.identity) {
        dp += x.de[at] * x.m[at];
      }
    }
    x.dp.set(t, dp);
  }
}

template <typename T>
void scatter_rows(const ScatterArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, row = x.row_of_token[t]; i < x.H; ++i) {
      if (row >= 0)
        x.dm.add(t * x.H + i, x.dx_rows[row * x.H + i]);
      else if (x.identity)
        x.dm.add(t * x.H + i, x.p[t] * x.de[t * x.H + i]);
    }
}

template <typename T>
void swiglu_rows(const SwigluArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    for (int64_t i = 0, at = row * 2 * x.F; i < x.F; ++i, ++at) {
      const T gate = x.gate_up[at], up = x.gate_up[at + x.F];
      x.act.set(row * x.F + i, gate * sigmoid(gate) * up);
    }
}

template <typename T>
void swiglu_gradient_rows(const SwigluGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    for (int64_t i = 0, at = row * 2 * x.F; i < x.F; ++i, ++at) {
      const T gate = x.gate_up[at], up = x.gate_up[at + x.F], dact = x.dact[row * x.F + i];
      const T sigma = sigmoid(gate);
      x.dgate_up.set(at, dact * up * sigma * (T(1) + gate * (T(1) - sigma)));
      x.dgate_up.set(at + x.F, dact * gate * sigma);
    }
}

}  // namespace

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_T,
                const RoutePlan& plan) {
  const int64_t T = expert_T.numel(), E = num_experts;
  if (ctx.meta()) return;
  const int32_t* expert = expert_T.as<int32_t>();
  int32_t* token_of_row = plan.token_of_row_T.as<int32_t>();
  int32_t* row_of_token = plan.row_of_token_T.as<int32_t>();
  const auto first = plan.row_of_expert_E1.span<int32_t>();
  const auto count = plan.count_X.span<int64_t>();
  std::fill(count.begin(), count.end(), 0);
  for (int64_t t = 0; t < T; ++t) {
    ASHLAR_ASSERT(expert[t] >= 0 && expert[t] <= E);
    ++count[size_t(expert[t])];
  }
  first[0] = 0;
  for (size_t e = 0; e < size_t(E); ++e) first[e + 1] = first[e] + int32_t(count[e]);
  // first[e] counts up to the first row of the next expert; afterwards all are moved back by one.
  for (int64_t t = 0; t < T; ++t) {
    const auto e = size_t(expert[t]);
    if (int64_t(e) == E) {
      row_of_token[t] = -1;
      continue;
    }
    row_of_token[t] = first[e]++;
    token_of_row[row_of_token[t]] = int32_t(t);
  }
  for (size_t e = size_t(E); e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void gather_rows(const Context& ctx, const RoutePlan& plan, const Tensor& m_TH,
                 const Tensor& x_rows_TH) {
  if (ctx.meta()) return;
  const int32_t* token_of_row = plan.token_of_row_T.as<int32_t>();
  const int64_t row_bytes = m_TH.shape[1] * size_of(m_TH.dtype);
  for_tokens(ctx, rows_in_use(plan.row_of_expert_E1, m_TH.shape[0]),
             [&](int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row)
                 std::memcpy(x_rows_TH.data + row * row_bytes,
                             m_TH.data + token_of_row[row] * row_bytes, size_t(row_bytes));
             });
}

void combine_forward(const Context& ctx, const CombineForward& x) {
  with_real(x.chosen_T.dtype, [&]<typename Real>(Real) {
    const CombineArgs<Real> args{.H = x.e_TH.shape[1],
                                 .identity = x.identity,
                                 .row_of_token = ints(x.plan.row_of_token_T),
                                 .y_rows = x.y_rows_TH,
                                 .p = x.chosen_T,
                                 .m = x.m_TH,
                                 .e = x.e_TH};
    run_rows(ctx, x.e_TH.shape[0], args, combine_rows_fast, combine_rows<Real>);
  });
}

void combine_backward(const Context& ctx, const CombineBackward& x) {
  with_real(x.chosen_T.dtype, [&]<typename Real>(Real) {
    const CombineGradientArgs<Real> args{.H = x.de_TH.shape[1],
                                         .identity = x.identity,
                                         .row_of_token = ints(x.plan.row_of_token_T),
                                         .de = x.de_TH,
                                         .y_rows = x.y_rows_TH,
                                         .p = x.chosen_T,
                                         .m = x.m_TH,
                                         .dy_rows = x.dy_rows_TH,
                                         .dp = x.dchosen_T};
    run_rows(ctx, x.de_TH.shape[0], args, combine_gradient_rows_fast, combine_gradient_rows<Real>);
  });
}

void scatter_rows_add(const Context& ctx, const ScatterRowsAdd& x) {
  with_real(x.chosen_T.dtype, [&]<typename Real>(Real) {
    const ScatterArgs<Real> args{.H = x.dm_TH.shape[1],
                                 .identity = x.identity,
                                 .row_of_token = ints(x.plan.row_of_token_T),
                                 .dx_rows = x.dx_rows_TH,
                                 .p = x.chosen_T,
                                 .de = x.de_TH,
                                 .dm = x.dm_TH};
    run_rows(ctx, x.dm_TH.shape[0], args, scatter_rows_fast, scatter_rows<Real>);
  });
}

void swiglu_forward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  if (ctx.meta()) return;
  const int64_t rows = rows_in_use(row_of_expert_E1, act_TF.shape[0]);
  with_real(gate_up_T2F.dtype, [&]<typename Real>(Real) {
    const SwigluArgs<Real> args{.F = act_TF.shape[1], .gate_up = gate_up_T2F, .act = act_TF};
    run_rows(ctx, rows, args, swiglu_rows_fast, swiglu_rows<Real>);
  });
}

void swiglu_backward(const Context& ctx, const Tensor& row_of_expert_E1, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  if (ctx.meta()) return;
  const int64_t rows = rows_in_use(row_of_expert_E1, dact_TF.shape[0]);
  with_real(gate_up_T2F.dtype, [&]<typename Real>(Real) {
    const SwigluGradientArgs<Real> args{
        .F = dact_TF.shape[1], .dact = dact_TF, .gate_up = gate_up_T2F, .dgate_up = dgate_up_T2F};
    run_rows(ctx, rows, args, swiglu_gradient_rows_fast, swiglu_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
