#include "ashlar/kernels/cpu/recurrence/token.h"

namespace ashlar::kernels::cpu {

int64_t token_scratch(const RecurrenceArgs& x) {
  return 3 * padded(x.shape.dk) + 2 * padded(x.shape.dv);  // q, k and a; v and out
}

template <typename Real>
void run_token(const RecurrenceArgs& x, int64_t chunk, int64_t h, const ValueColumns& columns,
               const Matrix& out, const Tensor& leaving, Real* state, Real* scratch) {
  const RowOps<Real>& ops = row_ops<Real>();
  const int64_t dk = x.shape.dk, dv = x.shape.dv, H = x.shape.H, j = h / (H / x.shape.K);
  const int64_t t = x.chunks[size_t(chunk)].begin;
  Real *q = scratch, *k = q + padded(dk), *a = k + padded(dk), *v = a + padded(dk),
       *o = v + padded(dv);
  const auto read = [&](const Matrix& m, int64_t first, int64_t count, Real* to) {
    ops.copy(m.columns(first, first + count).row_range(t, t + 1), 1, to, count);
  };
  read(x.q, j * dk, dk, q);
  read(x.k, j * dk, dk, k);
  read(x.v, h * dv + columns.first, columns.values, v);
  const Cells<Real> log_decay(x.log_decay), beta(x.beta_TH);
  if (x.decay == Decay::kChannel) {
    read(Matrix::of(x.log_decay), h * dk, dk, a);
    ops.exp(a, dk, a);
  } else {
    Real whole = 0;
    if (x.decay == Decay::kHead) whole = log_decay[h];
    if (x.decay == Decay::kToken) whole = log_decay[t * H + h];
    ops.exp(&whole, 1, &whole);
    std::fill_n(a, dk, whole);
  }
  const int64_t at = (chunk * H + h) * x.state_size() + columns.first;
  const bool enters = x.entering && !x.starts_document(t);
  ops.token({.dk = dk,
             .cols = columns.values,
             .stride = dv,
             .from = enters ? x.entering.as<Real>() + at : nullptr,
             .to = leaving ? leaving.as<Real>() + at : state,
             .q = q,
             .k = k,
             .a = a,
             .v = v,
             .beta = x.has_beta() ? beta[t * H + h] : Real(1),
             .delta = x.has_beta(),
             .out = o});
  const Matrix to = out.columns(h * dv + columns.first, h * dv + columns.first + columns.values)
                        .row_range(t, t + 1);
  ops.copy(view(o, 1, columns.values, dv), Real(x.shape.scale), reinterpret_cast<Real*>(to.data),
           to.stride);
}

template void run_token<float>(const RecurrenceArgs&, int64_t, int64_t, const ValueColumns&,
                               const Matrix&, const Tensor&, float*, float*);
template void run_token<double>(const RecurrenceArgs&, int64_t, int64_t, const ValueColumns&,
                                const Matrix&, const Tensor&, double*, double*);

}  // namespace ashlar::kernels::cpu
