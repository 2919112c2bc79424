#include "ashlar/kernels/router.h"

#include <algorithm>
#include <cmath>

#include "ashlar/kernels/cpu/router_args.h"

namespace ashlar::kernels {
namespace {

void check_row_vector(const Tensor& t, int64_t size, DType dtype) {
  ASHLAR_ASSERT(t.shape == Shape{size} && t.dtype == dtype);
}

void check_matrix(const Tensor& t, const Shape& shape, DType stream, bool product) {
  ASHLAR_ASSERT(t.shape == shape && (product ? is_real(t.dtype) : t.dtype == stream));
}

template <typename T>
T gelu(T x) {
  return x / 2 * std::erfc(-x * T(M_SQRT1_2));
}

template <typename T>
T gelu_slope(T x) {
  const T density = std::exp(-x * x / 2) * T(0.39894228040143267794);  // 1 / sqrt(2 pi)
  return std::erfc(-x * T(M_SQRT1_2)) / 2 + x * density;
}

template <typename T>
void mix_rows(const MixArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    T sum = 0;
    for (int64_t i = 0; i < x.R; ++i) {
      x.r.add(row + i, x.gamma ? x.b[i] + x.gamma[i] * x.r_prev[row + i] : x.b[i]);
      sum += x.r[row + i] * x.r[row + i];
    }
    const T rstd = T(1) / std::sqrt(sum / T(x.R) + T(x.eps));
    x.rstd.set(t, rstd);
    for (int64_t i = 0; i < x.R; ++i) x.n.set(row + i, x.w[i] * x.r[row + i] * rstd);
  }
}

template <typename T>
void mix_gradient_rows(const MixGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  T *db = partial, *dw = db + x.R, *dgamma = dw + x.R;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.R;
    const T rstd = x.rstd[t];
    T mean = 0;
    for (int64_t i = 0; i < x.R; ++i) mean += x.dn[row + i] * x.w[i] * x.r[row + i] * rstd / T(x.R);
    for (int64_t i = 0; i < x.R; ++i) {
      const T normed = x.r[row + i] * rstd, dn = x.dn[row + i];
      T dr = rstd * (dn * x.w[i] - normed * mean);
      if (x.dr_next) dr += x.dr_next[row + i];
      dw[i] += dn * normed;
      db[i] += dr;
      x.dr.set(row + i, dr);
      x.dr_low.set(row + i, dr);
      if (!x.gamma) continue;
      dgamma[i] += dr * x.r_prev[row + i];
      x.dr_prev.set(row + i, x.gamma[i] * dr);
    }
  }
}

template <typename T>
void gelu_rows(const GeluArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.R; ++i) x.s.set(t * x.R + i, gelu(x.z[t * x.R + i] + x.b[i]));
}

template <typename T>
void gelu_gradient_rows(const GeluGradientArgs<T>& x, int64_t begin, int64_t end, T* db) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0, at = t * x.R; i < x.R; ++i, ++at) {
      const T dz = x.ds[at] * gelu_slope(x.z[at] + x.b[i]);
      x.dz.set(at, dz);
      db[i] += dz;
    }
}

template <typename T>
void select_rows(const SelectArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.X;
    T largest = x.logits[row], sum = 0;
    for (int64_t i = 1; i < x.X; ++i) largest = std::max(largest, x.logits[row + i]);
    for (int64_t i = 0; i < x.X; ++i) sum += std::exp(x.logits[row + i] - largest);
    for (int64_t i = 0; i < x.X; ++i) x.p.set(row + i, std::exp(x.logits[row + i] - largest) / sum);
    int64_t best = 0;
    for (int64_t i = 1; i < x.X; ++i)
      if (x.p[row + i] + x.bias[i] > x.p[row + best] + x.bias[best]) best = i;
    x.expert[t] = int32_t(best);
    x.chosen.set(t, x.p[row + best]);
  }
}

template <typename T>
void select_gradient_rows(const SelectGradientArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t * x.X, chosen = x.expert[t];
    const T scale = x.dchosen[t] * x.p[row + chosen];
    for (int64_t i = 0; i < x.X; ++i)
      x.dlogits.set(row + i, scale * ((i == chosen ? T(1) : T(0)) - x.p[row + i]));
  }
}

}  // namespace

void router_mix_forward(const Context& ctx, double eps, const Tensor& r_TR, const Tensor& b_dn_R,
                        const Tensor& r_prev_TR, const Tensor& gamma_R, const Tensor& w_R,
                        const Tensor& n_TR, const Tensor& rstd_T) {
  const int64_t T = r_TR.shape[0], R = r_TR.shape[1];
  const DType stream = r_TR.dtype;
  ASHLAR_ASSERT(is_stream(stream) && bool(r_prev_TR) == bool(gamma_R));
  check_row_vector(b_dn_R, R, stream);
  check_row_vector(w_R, R, stream);
  check_row_vector(rstd_T, T, stream);
  check_matrix(n_TR, r_TR.shape, stream, true);
  if (gamma_R) {
    check_row_vector(gamma_R, R, stream);
    check_matrix(r_prev_TR, r_TR.shape, stream, false);
  }
  ctx.record(
      "router_mix_forward", r_TR.shape,
      {7 * T * R, r_TR.bytes() + bytes_of({r_TR, r_prev_TR, n_TR, rstd_T}) + 3 * w_R.bytes()});
  if (ctx.meta()) return;
  with_real(stream, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const MixArgs<Real> args{R,          eps,    C(r_TR), C(b_dn_R), C(r_prev_TR),
                             C(gamma_R), C(w_R), C(n_TR), C(rstd_T)};
    run_rows(ctx, T, args, mix_rows_fast, mix_rows<Real>);
  });
}

void router_mix_backward(const Context& ctx, const Tensor& dn_TR, const Tensor& dr_next_TR,
                         const Tensor& r_TR, const Tensor& r_prev_TR, const Tensor& gamma_R,
                         const Tensor& w_R, const Tensor& rstd_T, const Tensor& dr_TR,
                         const Tensor& dr_low_TR, const Tensor& dr_prev_TR, const Tensor& db_dn_R,
                         const Tensor& dgamma_R, const Tensor& dw_R) {
  const int64_t T = r_TR.shape[0], R = r_TR.shape[1];
  const DType stream = r_TR.dtype;
  ASHLAR_ASSERT(is_stream(stream) && bool(r_prev_TR) == bool(gamma_R) &&
                bool(dgamma_R) == bool(gamma_R) && bool(dr_prev_TR) == bool(gamma_R));
  for (const Tensor* t : {&w_R, &db_dn_R, &dw_R}) check_row_vector(*t, R, stream);
  check_row_vector(rstd_T, T, stream);
  check_matrix(dn_TR, r_TR.shape, stream, true);
  check_matrix(dr_TR, r_TR.shape, stream, false);
  check_matrix(dr_low_TR, r_TR.shape, stream, true);
  for (const Tensor* t : {&dr_next_TR, &r_prev_TR, &dr_prev_TR})
    if (*t) check_matrix(*t, r_TR.shape, stream, false);
  ctx.record("router_mix_backward", r_TR.shape,
             {16 * T * R,
              bytes_of({dn_TR, dr_next_TR, r_TR, r_prev_TR, dr_TR, dr_low_TR, dr_prev_TR, rstd_T}) +
                  5 * w_R.bytes()});
  const auto gradients = {db_dn_R, dw_R, dgamma_R};
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, gradients);
  with_real(stream, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const MixGradientArgs<Real> args{
        R,      C(dn_TR),  C(dr_next_TR), C(r_TR),      C(r_prev_TR), C(gamma_R),
        C(w_R), C(rstd_T), C(dr_TR),      C(dr_low_TR), C(dr_prev_TR)};
    run_summing_rows(ctx, T, gradients, args, mix_gradient_rows_fast, mix_gradient_rows<Real>);
  });
}

void bias_gelu_forward(const Context& ctx, const Tensor& z_TR, const Tensor& b_R,
                       const Tensor& s_TR) {
  const int64_t T = z_TR.shape[0], R = z_TR.shape[1];
  ASHLAR_ASSERT(is_stream(z_TR.dtype));
  check_row_vector(b_R, R, z_TR.dtype);
  check_matrix(s_TR, z_TR.shape, z_TR.dtype, true);
  ctx.record("bias_gelu_forward", z_TR.shape, {4 * T * R, bytes_of({z_TR, b_R, s_TR})});
  if (ctx.meta()) return;
  with_real(z_TR.dtype, [&]<typename Real>(Real) {
    const GeluArgs<Real> args{R, Cells<Real>(z_TR), Cells<Real>(b_R), Cells<Real>(s_TR)};
    run_rows(ctx, T, args, gelu_rows_fast, gelu_rows<Real>);
  });
}

void bias_gelu_backward(const Context& ctx, const Tensor& ds_TR, const Tensor& z_TR,
                        const Tensor& b_R, const Tensor& dz_TR, const Tensor& db_R) {
  const int64_t T = z_TR.shape[0], R = z_TR.shape[1];
  ASHLAR_ASSERT(is_stream(z_TR.dtype));
  check_row_vector(b_R, R, z_TR.dtype);
  check_row_vector(db_R, R, z_TR.dtype);
  check_matrix(ds_TR, z_TR.shape, z_TR.dtype, true);
  check_matrix(dz_TR, z_TR.shape, z_TR.dtype, true);
  ctx.record("bias_gelu_backward", z_TR.shape,
             {9 * T * R, bytes_of({ds_TR, z_TR, b_R, dz_TR, db_R})});
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, {db_R});
  with_real(z_TR.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const GeluGradientArgs<Real> args{R, C(ds_TR), C(z_TR), C(b_R), C(dz_TR)};
    run_summing_rows(ctx, T, {db_R}, args, gelu_gradient_rows_fast, gelu_gradient_rows<Real>);
  });
}

void router_select_forward(const Context& ctx, const Tensor& logits_TX, const Tensor& bias_X,
                           const Tensor& p_TX, const Tensor& expert_T, const Tensor& chosen_T) {
  const int64_t T = logits_TX.shape[0], X = logits_TX.shape[1];
  const DType stream = logits_TX.dtype;
  ASHLAR_ASSERT(is_stream(stream) && X > 0);
  check_row_vector(bias_X, X, stream);
  check_matrix(p_TX, logits_TX.shape, stream, false);
  check_row_vector(expert_T, T, DType::kI32);
  check_row_vector(chosen_T, T, stream);
  ctx.record("router_select_forward", logits_TX.shape,
             {6 * T * X, bytes_of({logits_TX, bias_X, p_TX, expert_T, chosen_T})});
  if (ctx.meta()) return;
  with_real(stream, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const SelectArgs<Real> args{X,       C(logits_TX), C(bias_X),
                                C(p_TX), C(chosen_T),  expert_T.as<int32_t>()};
    run_rows(ctx, T, args, select_rows_fast, select_rows<Real>);
  });
}

void router_select_backward(const Context& ctx, const Tensor& dchosen_T, const Tensor& p_TX,
                            const Tensor& expert_T, const Tensor& dlogits_TX) {
  const int64_t T = p_TX.shape[0], X = p_TX.shape[1];
  const DType stream = p_TX.dtype;
  ASHLAR_ASSERT(is_stream(stream));
  check_row_vector(dchosen_T, T, stream);
  check_row_vector(expert_T, T, DType::kI32);
  check_matrix(dlogits_TX, p_TX.shape, stream, true);
  ctx.record("router_select_backward", p_TX.shape,
             {3 * T * X, bytes_of({dchosen_T, p_TX, expert_T, dlogits_TX})});
  if (ctx.meta()) return;
  with_real(stream, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const SelectGradientArgs<Real> args{X, C(dchosen_T), C(p_TX), C(dlogits_TX),
                                        expert_T.as<int32_t>()};
    run_rows(ctx, T, args, select_gradient_rows_fast, select_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels
