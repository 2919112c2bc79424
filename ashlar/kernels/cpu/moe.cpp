#include "ashlar/kernels/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ashlar/kernels/cpu/moe_args.h"

namespace ashlar::kernels {
namespace {

// The stream type of a call is the type of its routing probabilities.
void check_rows(const RoutePlan& plan, std::initializer_list<Tensor> matrices,
                const Tensor& chosen_T) {
  const int64_t T = plan.row_of_token_T.numel();
  ASHLAR_ASSERT(chosen_T.shape == Shape{T});
  ASHLAR_ASSERT(chosen_T.dtype == DType::kF32 || chosen_T.dtype == DType::kF64);
  for (const Tensor& m : matrices)
    ASHLAR_ASSERT(m.shape == matrices.begin()->shape && m.shape[0] == T && is_real(m.dtype));
}

void check_swiglu(int64_t num_rows, const Tensor& act_TF, const Tensor& gate_up_T2F) {
  ASHLAR_ASSERT(act_TF.shape.ndim() == 2 && num_rows <= act_TF.shape[0]);
  ASHLAR_ASSERT((gate_up_T2F.shape == Shape{act_TF.shape[0], 2 * act_TF.shape[1]}));
  ASHLAR_ASSERT(is_real(act_TF.dtype) && is_real(gate_up_T2F.dtype));
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

std::span<const int32_t> RoutePlan::row_of_expert() const {
  if (row_of_expert_E1.device == Device::kMeta) return {};
  return row_of_expert_E1.span<const int32_t>();
}

void route_plan(const Context& ctx, int64_t num_experts, const Tensor& expert_T,
                const RoutePlan& plan) {
  const int64_t T = expert_T.numel(), E = num_experts;
  ASHLAR_ASSERT(expert_T.dtype == DType::kI32 && plan.row_of_expert_E1.shape == Shape{E + 1});
  ASHLAR_ASSERT(plan.token_of_row_T.shape == Shape{T} && plan.row_of_token_T.shape == Shape{T});
  ASHLAR_ASSERT(plan.count_X.shape == Shape{E + 1} && plan.count_X.dtype == DType::kI64);
  ctx.record("route_plan", {T}, {0, 3 * expert_T.bytes()});
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
  // Running starts: shifted by one, they end as the next expert's first row.
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
  ASHLAR_ASSERT(m_TH.shape.ndim() == 2 && m_TH.shape[0] == plan.row_of_token_T.numel());
  ASHLAR_ASSERT(x_rows_TH.shape == m_TH.shape && x_rows_TH.dtype == m_TH.dtype);
  ctx.record("gather_rows", m_TH.shape, {0, bytes_of({m_TH, x_rows_TH, plan.token_of_row_T})});
  if (ctx.meta()) return;
  const int32_t* token_of_row = plan.token_of_row_T.as<int32_t>();
  const int64_t row_bytes = m_TH.shape[1] * size_of(m_TH.dtype);
  for_tokens(ctx, plan.row_of_expert().back(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(x_rows_TH.data + row * row_bytes, m_TH.data + token_of_row[row] * row_bytes,
                  size_t(row_bytes));
  });
}

void combine_forward(const Context& ctx, const RoutePlan& plan, bool identity,
                     const Tensor& y_rows_TH, const Tensor& chosen_T, const Tensor& m_TH,
                     const Tensor& e_TH) {
  check_rows(plan, {e_TH, y_rows_TH, m_TH}, chosen_T);
  const int64_t T = e_TH.shape[0], H = e_TH.shape[1];
  ctx.record("combine_forward", e_TH.shape, {T * H, bytes_of({y_rows_TH, e_TH, chosen_T})});
  if (ctx.meta()) return;
  with_real(chosen_T.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const CombineArgs<Real> args{
        H,       identity, plan.row_of_token_T.as<int32_t>(), C(y_rows_TH), C(chosen_T),
        C(m_TH), C(e_TH)};
    run_rows(ctx, T, args, combine_rows_fast, combine_rows<Real>);
  });
}

void combine_backward(const Context& ctx, const RoutePlan& plan, bool identity, const Tensor& de_TH,
                      const Tensor& y_rows_TH, const Tensor& chosen_T, const Tensor& m_TH,
                      const Tensor& dy_rows_TH, const Tensor& dchosen_T) {
  check_rows(plan, {de_TH, y_rows_TH, m_TH, dy_rows_TH}, chosen_T);
  ASHLAR_ASSERT(dchosen_T.shape == chosen_T.shape && dchosen_T.dtype == chosen_T.dtype);
  const int64_t T = de_TH.shape[0], H = de_TH.shape[1];
  ctx.record("combine_backward", de_TH.shape,
             {3 * T * H, bytes_of({de_TH, y_rows_TH, dy_rows_TH, chosen_T, dchosen_T})});
  if (ctx.meta()) return;
  with_real(chosen_T.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const CombineGradientArgs<Real> args{H,        identity,      plan.row_of_token_T.as<int32_t>(),
                                         C(de_TH), C(y_rows_TH),  C(chosen_T),
                                         C(m_TH),  C(dy_rows_TH), C(dchosen_T)};
    run_rows(ctx, T, args, combine_gradient_rows_fast, combine_gradient_rows<Real>);
  });
}

void scatter_rows_add(const Context& ctx, const RoutePlan& plan, bool identity,
                      const Tensor& dx_rows_TH, const Tensor& chosen_T, const Tensor& de_TH,
                      const Tensor& dm_TH) {
  check_rows(plan, {dx_rows_TH, de_TH, dm_TH}, chosen_T);
  const int64_t T = dm_TH.shape[0], H = dm_TH.shape[1];
  ctx.record("scatter_rows_add", dm_TH.shape, {T * H, dx_rows_TH.bytes() + 2 * dm_TH.bytes()});
  if (ctx.meta()) return;
  with_real(chosen_T.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const ScatterArgs<Real> args{
        H,        identity, plan.row_of_token_T.as<int32_t>(), C(dx_rows_TH), C(chosen_T),
        C(de_TH), C(dm_TH)};
    run_rows(ctx, T, args, scatter_rows_fast, scatter_rows<Real>);
  });
}

void swiglu_forward(const Context& ctx, int64_t num_rows, const Tensor& gate_up_T2F,
                    const Tensor& act_TF) {
  check_swiglu(num_rows, act_TF, gate_up_T2F);
  const int64_t F = act_TF.shape[1];
  ctx.record("swiglu_forward", {num_rows, F}, {5 * num_rows * F, bytes_of({gate_up_T2F, act_TF})});
  if (ctx.meta()) return;
  with_real(gate_up_T2F.dtype, [&]<typename Real>(Real) {
    const SwigluArgs<Real> args{F, Cells<Real>(gate_up_T2F), Cells<Real>(act_TF)};
    run_rows(ctx, num_rows, args, swiglu_rows_fast, swiglu_rows<Real>);
  });
}

void swiglu_backward(const Context& ctx, int64_t num_rows, const Tensor& dact_TF,
                     const Tensor& gate_up_T2F, const Tensor& dgate_up_T2F) {
  check_swiglu(num_rows, dact_TF, gate_up_T2F);
  check_swiglu(num_rows, dact_TF, dgate_up_T2F);
  const int64_t F = dact_TF.shape[1];
  ctx.record("swiglu_backward", {num_rows, F},
             {11 * num_rows * F, bytes_of({dact_TF, gate_up_T2F, dgate_up_T2F})});
  if (ctx.meta()) return;
  with_real(gate_up_T2F.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const SwigluGradientArgs<Real> args{F, C(dact_TF), C(gate_up_T2F), C(dgate_up_T2F)};
    run_rows(ctx, num_rows, args, swiglu_gradient_rows_fast, swiglu_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels
