#include <algorithm>
#include <cstring>

#include "ashlar/kernels/cpu/activations.h"
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

// One token's sum over its choices, element by element; the first one begins it.
template <typename T>
void combine_rows(const CombineArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.H; ++i) {
      T output = 0;
      for (int64_t j = 0, at = t * x.k; j < x.k; ++j, ++at) {
        const int64_t row = x.row_of_token[at];
        if (row < 0 && !x.identity) continue;
        const T term = x.p[at] * (row >= 0 ? x.y_rows[row * x.H + i] : x.m[t * x.H + i]);
        output = j == 0 ? term : output + term;
      }
      x.e.set(t * x.H + i, output);
    }
}

template <typename T>
void combine_gradient_rows(const CombineGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t choice = begin * x.k; choice < end * x.k; ++choice) {
    const int64_t row = x.row_of_token[choice];
    T dp = 0;
    for (int64_t i = 0, at = choice / x.k * x.H; i < x.H; ++i, ++at) {
      if (row >= 0) {
        dp += x.de[at] * x.y_rows[row * x.H + i];
        x.dy_rows.set(row * x.H + i, x.p[choice] * x.de[at]);
      } else if (x.identity) {
        dp += x.de[at] * x.m[at];
      }
    }
    x.dp.set(choice, dp);
  }
}

template <typename T>
void scatter_rows(const ScatterArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.H; ++i) {
      T sum = x.dm[t * x.H + i];
      if (x.shared) sum += x.shared[t * x.H + i];
      for (int64_t j = 0, at = t * x.k; j < x.k; ++j, ++at) {
        const int64_t row = x.row_of_token[at];
        if (row >= 0)
          sum += x.dx_rows[row * x.H + i];
        else if (x.identity)
          sum += x.p[at] * x.de[t * x.H + i];
      }
      x.dm.set(t * x.H + i, sum);
    }
}

template <typename T>
void shared_rows(const SharedArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T gate = x.z ? sigmoid(x.z[t]) : T(1);
    for (int64_t i = 0, at = t * x.H; i < x.H; ++i, ++at) x.e.add(at, gate * x.s[at]);
  }
}

template <typename T>
void shared_gradient_rows(const SharedGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T gate = sigmoid(x.z[t]);
    T sum = 0;
    for (int64_t i = 0, at = t * x.H; i < x.H; ++i, ++at) {
      sum += x.de[at] * x.s[at];
      x.ds.set(at, gate * x.de[at]);
    }
    x.dz.set(t, gate * (T(1) - gate) * sum);
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

void leave_out_padding(const Context& ctx, const Sequence& sequence, const Tensor& expert_Tk) {
  if (ctx.meta()) return;
  const int64_t k = expert_Tk.numel() / sequence.num_tokens();
  int32_t* expert = expert_Tk.as<int32_t>();
  for (const Segment& s : sequence.segments())
    if (s.padding) std::fill_n(expert + s.row * k, s.length * k, kNoClass);
}

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_Tk,
                const RoutePlan& plan) {
  const int64_t R = expert_Tk.numel(), k = expert_Tk.shape[1], E = num_experts;
  if (ctx.meta()) return;
  const int32_t* expert = expert_Tk.as<int32_t>();
  int32_t* token_of_row = plan.token_of_row_R.as<int32_t>();
  int32_t* row_of_token = plan.row_of_token_Tk.as<int32_t>();
  const auto first = plan.row_of_expert_E1.span<int32_t>();
  const auto count = plan.count_X.span<int64_t>();
  std::fill(count.begin(), count.end(), 0);
  for (int64_t choice = 0; choice < R; ++choice) {
    ASHLAR_ASSERT(expert[choice] >= kNoClass && expert[choice] <= E);
    if (expert[choice] != kNoClass) ++count[size_t(expert[choice])];
  }
  first[0] = 0;
  for (size_t e = 0; e < size_t(E); ++e) first[e + 1] = first[e] + int32_t(count[e]);
  // first[e] counts up to the first row of the next expert; afterwards all are moved back by one.
  for (int64_t choice = 0; choice < R; ++choice) {
    const int32_t e = expert[choice];
    if (e == kNoClass || e == E) {
      row_of_token[choice] = -1;
      continue;
    }
    row_of_token[choice] = first[size_t(e)]++;
    token_of_row[row_of_token[choice]] = int32_t(choice / k);
  }
  for (size_t e = size_t(E); e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

void gather_rows(const Context& ctx, const RoutePlan& plan, const Tensor& m_TH,
                 const Tensor& x_rows_RH) {
  if (ctx.meta()) return;
  const int32_t* token_of_row = plan.token_of_row_R.as<int32_t>();
  const int64_t row_bytes = m_TH.shape[1] * size_of(m_TH.dtype);
  for_tokens(ctx, rows_in_use(plan.row_of_expert_E1, x_rows_RH.shape[0]),
             [&](int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row)
                 std::memcpy(x_rows_RH.data + row * row_bytes,
                             m_TH.data + token_of_row[row] * row_bytes, size_t(row_bytes));
             });
}

void combine_forward(const Context& ctx, const CombineForward& x) {
  with_real(x.weight_Tk.dtype, [&]<typename Real>(Real) {
    const CombineArgs<Real> args{.H = x.e_TH.shape[1],
                                 .k = x.weight_Tk.shape[1],
                                 .identity = x.identity,
                                 .row_of_token = ints(x.plan.row_of_token_Tk),
                                 .y_rows = x.y_rows_RH,
                                 .p = x.weight_Tk,
                                 .m = x.m_TH,
                                 .e = x.e_TH};
    run_rows(ctx, x.e_TH.shape[0], args, combine_rows_fast, combine_rows<Real>);
  });
}

void combine_backward(const Context& ctx, const CombineBackward& x) {
  with_real(x.weight_Tk.dtype, [&]<typename Real>(Real) {
    const CombineGradientArgs<Real> args{.H = x.de_TH.shape[1],
                                         .k = x.weight_Tk.shape[1],
                                         .identity = x.identity,
                                         .row_of_token = ints(x.plan.row_of_token_Tk),
                                         .de = x.de_TH,
                                         .y_rows = x.y_rows_RH,
                                         .p = x.weight_Tk,
                                         .m = x.m_TH,
                                         .dy_rows = x.dy_rows_RH,
                                         .dp = x.dweight_Tk};
    run_rows(ctx, x.de_TH.shape[0], args, combine_gradient_rows_fast, combine_gradient_rows<Real>);
  });
}

void scatter_rows_add(const Context& ctx, const ScatterRowsAdd& x) {
  with_real(x.weight_Tk.dtype, [&]<typename Real>(Real) {
    const ScatterArgs<Real> args{.H = x.dm_TH.shape[1],
                                 .k = x.weight_Tk.shape[1],
                                 .identity = x.identity,
                                 .row_of_token = ints(x.plan.row_of_token_Tk),
                                 .shared = x.shared_TH,
                                 .dx_rows = x.dx_rows_RH,
                                 .p = x.weight_Tk,
                                 .de = x.de_TH,
                                 .dm = x.dm_TH};
    run_rows(ctx, x.dm_TH.shape[0], args, scatter_rows_fast, scatter_rows<Real>);
  });
}

void shared_add_forward(const Context& ctx, const Tensor& z_T, const Tensor& s_TH,
                        const Tensor& e_TH) {
  with_real(e_TH.dtype, [&]<typename Real>(Real) {
    const SharedArgs<Real> args{.H = e_TH.shape[1], .z = z_T, .s = s_TH, .e = e_TH};
    run_rows(ctx, e_TH.shape[0], args, shared_rows_fast, shared_rows<Real>);
  });
}

void shared_add_backward(const Context& ctx, const SharedAddBackward& x) {
  with_real(x.z_T.dtype, [&]<typename Real>(Real) {
    const SharedGradientArgs<Real> args{
        .H = x.de_TH.shape[1], .de = x.de_TH, .z = x.z_T, .s = x.s_TH, .ds = x.ds_TH, .dz = x.dz_T};
    run_rows(ctx, x.de_TH.shape[0], args, shared_gradient_rows_fast, shared_gradient_rows<Real>);
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
