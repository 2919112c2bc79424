#include "ashlar/kernels/qk.h"

#include <cmath>

#include "ashlar/kernels/cpu/qk_args.h"

namespace ashlar::kernels {
namespace {

struct Check {
  const QkShape& s;
  int64_t T;
  DType stream;
  void tensor(const Tensor& t, const Shape& shape, bool any_real) const {
    ASHLAR_ASSERT(t.shape == shape && (any_real ? is_real(t.dtype) : t.dtype == stream));
  }
  void inputs(const Tensor& rope, const Tensor& qkv, const Tensor& y, const Tensor& b1,
              const Tensor& tau, const Tensor& n_q, const Tensor& n_k) const {
    ASHLAR_ASSERT(stream == DType::kF32 || stream == DType::kF64);
    ASHLAR_ASSERT(s.N % s.K == 0 && s.num_delayed() <= s.K * s.D && s.rotary_dim % 2 == 0 &&
                  s.rotary_dim <= s.D);
    ASHLAR_ASSERT(s.delayed >= 0 || s.K * s.D % 2 == 0);
    ASHLAR_ASSERT(rope.shape.ndim() == 2 && rope.shape[1] == s.rotary_dim && rope.dtype == stream);
    tensor(qkv, {T, s.C() + s.K * s.D}, false);
    tensor(y, {T, s.C()}, false);
    tensor(b1, {s.C()}, false);
    tensor(tau, {s.K}, false);
    tensor(n_q, {T, s.N}, false);
    tensor(n_k, {T, s.K}, false);
  }
  // Absent where the queries of every key head are at hand.
  void query_sums(const Tensor& sums) const {
    ASHLAR_ASSERT(bool(sums) == (s.G() != s.N / s.K));
    if (sums) tensor(sums, {T, s.K * s.D}, false);
  }
  void positions(const Sequence& sequence, const Tensor& rope) const {
    for (const Segment& segment : sequence.segments())
      ASHLAR_ASSERT(segment.position + segment.length <= rope.shape[0]);
  }
};

// The arithmetic of one token.  Heads are numbered 0 .. N-1 (queries), N .. N+K-1 (keys): head h is
// channels [h D, (h + 1) D) of qkv, y and b1.
template <typename T>
struct Token {
  const QkShape& s;
  Cells<T> qkv, y, b1, q_sum;
  int64_t t;
  T z(int64_t head, int64_t i) const { return qkv[t * (s.C() + s.K * s.D) + head * s.D + i]; }

  // Q_h or K_j before the norm.
  T mixed(int64_t head, int64_t i) const {
    const int64_t channel = head * s.D + i;
    const T own = z(head, i), conv = y[t * s.C() + channel] + b1[channel];
    if (head < s.N) return conv + (own + z(s.N + head / (s.N / s.K), i)) / 2;
    const int64_t j = head - s.N;
    const T sum = q_sum ? q_sum[(t * s.K + j) * s.D + i] : local_query_sum(j, i);
    return conv + (own + sum / T(s.G())) / 2;
  }
  T local_query_sum(int64_t j, int64_t i) const {
    const int64_t local = s.N / s.K;
    T sum = 0;
    for (int64_t h = j * local; h < (j + 1) * local; ++h) sum += z(h, i);
    return sum;
  }
  T norm(int64_t head) const {
    T sum = 0;
    for (int64_t i = 0; i < s.D; ++i) sum += mixed(head, i) * mixed(head, i);
    return std::sqrt(sum + T(s.eps));
  }
};

// Element i of x rotated by the angles of `row` of the table, in direction +1 or -1.
template <typename T, typename X>
T rotated(Cells<T> rope, int64_t row, int64_t rho, int64_t i, T direction, X x) {
  if (i >= rho) return x(i);
  const int64_t half = rho / 2, pair = i % half;
  const T c = rope[row * rho + pair], s = direction * rope[row * rho + half + pair];
  return i < half ? x(i) * c - x(i + half) * s : x(i) * c + x(i - half) * s;
}

// dX of one head into dx [D]; returns the temperature's share (of a key).
template <typename T>
T head_gradient(const QkGradientArgs<T>& x, const Token<T>& token, int64_t head, T* dx) {
  const int64_t D = x.s.D, t = token.t, j = head - x.s.N;
  const int64_t position = x.sequence->position_T()[size_t(t)];
  const bool key = j >= 0;
  const T n = key ? x.n_k[t * x.s.K + j] : x.n_q[t * x.s.N + head];
  const T root = std::sqrt(T(D)), scale = (key ? x.tau[j] * root : root) / n;
  const Cells<T>& dhat = key ? x.dkhat : x.dqhat;
  const int64_t from = key ? (t * x.s.K + j) * D : (t * x.s.N + head) * D;
  T along = 0;  // <g, X / n>
  for (int64_t i = 0; i < D; ++i) {
    dx[i] = rotated(x.rope, position, x.s.rotary_dim, i, T(-1),
                    [&](int64_t k) { return dhat[from + k]; });
    along += dx[i] * token.mixed(head, i) / n;
  }
  for (int64_t i = 0; i < D; ++i) dx[i] = scale * (dx[i] - token.mixed(head, i) / n * along);
  return root * along;
}

// dz of one head of token t from the QK mean.
template <typename T>
T mean_share(const QkGradientArgs<T>& x, int64_t t, const T* dx, int64_t head, int64_t i) {
  const int64_t N = x.s.N, D = x.s.D, local = N / x.s.K, j = head - N;
  const T own = dx[head * D + i] / 2;
  if (j < 0) return own + dx[(N + head / local) * D + i] / T(2 * x.s.G());
  if (x.dq_sum) return own + x.dq_sum[(t * x.s.K + j) * D + i] / 2;
  T sum = 0;
  for (int64_t h = j * local; h < (j + 1) * local; ++h) sum += dx[h * D + i];
  return own + sum / 2;
}

template <typename T>
void value_gradient(const QkGradientArgs<T>& x, int64_t t) {
  const int64_t KD = x.s.K * x.s.D, delayed = x.s.num_delayed(), current = KD - delayed;
  const int64_t to = t * (x.s.C() + KD) + x.s.C();
  const DelayedPlace p = delayed_place_of(*x.sequence, t);
  for (int64_t i = 0; i < current; ++i) x.dqkv.set(to + i, x.dv[t * KD + i]);
  for (int64_t i = 0; i < delayed; ++i) {
    x.dqkv.set(to + current + i, p.last ? T(0) : x.dv[(t + 1) * KD + current + i]);
    if (p.first && p.halo >= 0) x.dhalo_vd.set(p.halo * delayed + i, x.dv[t * KD + current + i]);
  }
}

template <typename T>
void qk_gradient_rows(const QkGradientArgs<T>& x, int64_t begin, int64_t end, T* partial) {
  const int64_t C = x.s.C(), D = x.s.D;
  T *dtau = partial, *db1 = partial + x.s.K, *dx = db1 + C;
  for (int64_t t = begin; t < end; ++t) {
    const Token<T> token{x.s, x.qkv, x.y, x.b1, x.q_sum, t};
    for (int64_t h = 0; h < x.s.N + x.s.K; ++h) {
      const T dtau_share = head_gradient(x, token, h, dx + h * D);
      if (h >= x.s.N) dtau[h - x.s.N] += dtau_share;
    }
    for (int64_t c = 0; c < C; ++c) {
      db1[c] += dx[c];
      x.dy.set(t * C + c, dx[c]);
      x.dqkv.set(t * (C + x.s.K * D) + c, mean_share(x, t, dx, c / D, c % D));
    }
    value_gradient(x, t);
  }
}

template <typename T>
void query_gradient_sum_rows(const QkGradientArgs<T>& x, int64_t begin, int64_t end, T* dx) {
  const int64_t D = x.s.D, local = x.s.N / x.s.K;
  for (int64_t t = begin; t < end; ++t) {
    const Token<T> token{x.s, x.qkv, x.y, x.b1, x.q_sum, t};
    for (int64_t h = 0; h < x.s.N; ++h) {
      const int64_t to = (t * x.s.K + h / local) * D;
      head_gradient(x, token, h, dx);
      for (int64_t i = 0; i < D; ++i)
        x.dq_sum.set(to + i, h % local == 0 ? dx[i] : x.dq_sum[to + i] + dx[i]);
    }
  }
}

template <typename T>
void query_sum_rows(const QkArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t D = x.s.D, KD = x.s.K * D;
  for (int64_t t = begin; t < end; ++t) {
    const Token<T> token{x.s, x.qkv, x.y, x.b1, x.q_sum, t};
    for (int64_t c = 0; c < KD; ++c) x.q_sum.set(t * KD + c, token.local_query_sum(c / D, c % D));
  }
}

template <typename T>
void value_row(const QkArgs<T>& x, int64_t t) {
  const int64_t KD = x.s.K * x.s.D, delayed = x.s.num_delayed(), current = KD - delayed;
  const int64_t width = x.s.C() + KD, from = t * width + x.s.C();
  const DelayedPlace p = delayed_place_of(*x.sequence, t);
  for (int64_t i = 0; i < current; ++i) x.v.set(t * KD + i, x.qkv[from + i]);
  for (int64_t i = 0; i < delayed; ++i) {
    T before = 0;
    if (!p.first)
      before = x.qkv[from - width + current + i];
    else if (p.halo >= 0)
      before = x.halo_vd[p.halo * delayed + i];
    x.v.set(t * KD + current + i, before);
  }
}

template <typename T>
void qk_rows(const QkArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t N = x.s.N, K = x.s.K, D = x.s.D;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = x.sequence->position_T()[size_t(t)];
    const Token<T> token{x.s, x.qkv, x.y, x.b1, x.q_sum, t};
    for (int64_t head = 0; head < N + K; ++head) {
      const int64_t j = head - N;
      const bool key = j >= 0;
      const T n = token.norm(head);
      key ? x.n_k.set(t * K + j, n) : x.n_q.set(t * N + head, n);
      const T scale = (key ? x.tau[j] : T(1)) * std::sqrt(T(D)) / n;
      const int64_t to = key ? (t * K + j) * D : (t * N + head) * D;
      for (int64_t i = 0; i < D; ++i)
        (key ? x.khat : x.qhat)
            .set(to + i, rotated(x.rope, position, x.s.rotary_dim, i, T(1),
                                 [&](int64_t k) { return scale * token.mixed(head, k); }));
    }
    value_row(x, t);
  }
}

}  // namespace

void rope_table(const Context& ctx, double theta, int64_t rotary_dim, const Tensor& table_PR) {
  ASHLAR_ASSERT(table_PR.shape.ndim() == 2 && table_PR.shape[1] == rotary_dim &&
                rotary_dim % 2 == 0);
  if (ctx.meta()) return;
  const int64_t half = rotary_dim / 2;
  with_real(table_PR.dtype, [&]<typename Real>(Real) {
    const Cells<Real> table(table_PR);
    for_tokens(ctx, table_PR.shape[0], [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < half; ++i) {
        const double frequency = std::pow(theta, -2.0 * double(i) / double(rotary_dim));
        for (int64_t p = begin; p < end; ++p) {
          table.set(p * rotary_dim + i, Real(std::cos(double(p) * frequency)));
          table.set(p * rotary_dim + half + i, Real(std::sin(double(p) * frequency)));
        }
      }
    });
  });
}

void qk_query_sums(const Context& ctx, const QkShape& s, const Tensor& qkv,
                   const Tensor& q_sum_TKD) {
  const int64_t T = qkv.shape[0], KD = s.K * s.D;
  const Check check{s, T, qkv.dtype};
  check.tensor(qkv, {T, s.C() + KD}, false);
  check.tensor(q_sum_TKD, {T, KD}, false);
  const int64_t read = T * s.N * s.D;
  ctx.record("qk_query_sums", {T, KD}, {read, read * size_of(qkv.dtype) + q_sum_TKD.bytes()});
  if (ctx.meta()) return;
  with_real(qkv.dtype, [&]<typename Real>(Real) {
    QkArgs<Real> args{};
    args.s = s, args.qkv = Cells<Real>(qkv), args.q_sum = Cells<Real>(q_sum_TKD);
    run_rows(ctx, T, args, qk_query_sum_rows_fast, query_sum_rows<Real>);
  });
}

void qk_query_gradient_sums(const Context& ctx, const QkShape& s, const Sequence& sequence,
                            const Tensor& rope_PR, const Tensor& qkv, const Tensor& y_TC,
                            const Tensor& b1_C, const Tensor& n_q_TN, const Tensor& dqhat,
                            const Tensor& dq_sum_TKD) {
  const int64_t T = sequence.num_tokens(), D = s.D;
  const Check check{s, T, qkv.dtype};
  check.positions(sequence, rope_PR);
  check.tensor(qkv, {T, s.C() + s.K * D}, false);
  check.tensor(dqhat, {T, s.N * D}, false);
  check.tensor(dq_sum_TKD, {T, s.K * D}, false);
  ctx.record("qk_query_gradient_sums", {T, s.N * D},
             {20 * T * s.N * D, bytes_of({qkv, dqhat, dqhat, n_q_TN, dq_sum_TKD})});
  const std::initializer_list<Tensor> none = {Tensor{.dtype = qkv.dtype}};  // but scratch
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, none, D);
  with_real(qkv.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    QkGradientArgs<Real> args{};
    args.s = s, args.sequence = &sequence;
    args.rope = C(rope_PR), args.qkv = C(qkv), args.y = C(y_TC), args.b1 = C(b1_C);
    args.n_q = C(n_q_TN), args.dqhat = C(dqhat), args.dq_sum = C(dq_sum_TKD);
    run_summing_rows(ctx, T, none, args, qk_query_gradient_sum_rows_fast,
                     query_gradient_sum_rows<Real>, D);
  });
}

void qk_forward(const Context& ctx, const QkShape& s, const Sequence& sequence,
                const Tensor& rope_PR, const Tensor& qkv, const Tensor& y_TC, const Tensor& b1_C,
                const Tensor& tau_K, const Tensor& halo_vd, const Tensor& qhat, const Tensor& khat,
                const Tensor& v, const Tensor& n_q_TN, const Tensor& n_k_TK,
                const Tensor& q_sum_TKD) {
  const int64_t T = sequence.num_tokens(), KD = s.K * s.D;
  const Check check{s, T, qkv.dtype};
  check.inputs(rope_PR, qkv, y_TC, b1_C, tau_K, n_q_TN, n_k_TK);
  check.positions(sequence, rope_PR);
  check.query_sums(q_sum_TKD);
  check.tensor(halo_vd, {sequence.num_halos(), s.num_delayed()}, false);
  check.tensor(qhat, {T, s.N * s.D}, true);
  check.tensor(khat, {T, KD}, true);
  check.tensor(v, {T, KD}, true);
  ctx.record("qk_forward", {T, s.C()},
             {14 * T * s.C(), bytes_of({qkv, y_TC, b1_C, halo_vd, qhat, khat, v, n_q_TN, n_k_TK})});
  if (ctx.meta()) return;
  with_real(qkv.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const QkArgs<Real> args{s,       &sequence, C(rope_PR), C(qkv),      C(y_TC),
                            C(b1_C), C(tau_K),  C(halo_vd), C(qhat),     C(khat),
                            C(v),    C(n_q_TN), C(n_k_TK),  C(q_sum_TKD)};
    run_rows(ctx, T, args, qk_rows_fast, qk_rows<Real>);
  });
}

void qk_backward(const Context& ctx, const QkShape& s, const Sequence& sequence,
                 const Tensor& rope_PR, const Tensor& qkv, const Tensor& y_TC, const Tensor& b1_C,
                 const Tensor& tau_K, const Tensor& n_q_TN, const Tensor& n_k_TK,
                 const Tensor& dqhat, const Tensor& dkhat, const Tensor& dv, const Tensor& dy_TC,
                 const Tensor& dqkv, const Tensor& dhalo_vd, const Tensor& dtau_K,
                 const Tensor& db1_C, const Tensor& q_sum_TKD, const Tensor& dq_sum_TKD) {
  const int64_t T = sequence.num_tokens(), KD = s.K * s.D;
  const Check check{s, T, qkv.dtype};
  check.inputs(rope_PR, qkv, y_TC, b1_C, tau_K, n_q_TN, n_k_TK);
  check.positions(sequence, rope_PR);
  check.tensor(dqhat, {T, s.N * s.D}, false);
  check.tensor(dkhat, {T, KD}, false);
  check.tensor(dv, {T, KD}, false);
  check.tensor(dy_TC, y_TC.shape, true);
  check.tensor(dqkv, qkv.shape, true);
  check.query_sums(q_sum_TKD);
  check.query_sums(dq_sum_TKD);
  check.tensor(dhalo_vd, {sequence.num_halos(), s.num_delayed()}, false);
  check.tensor(dtau_K, tau_K.shape, false);
  check.tensor(db1_C, b1_C.shape, false);
  ctx.record("qk_backward", {T, s.C()},
             {30 * T * s.C(), bytes_of({qkv, y_TC, b1_C, n_q_TN, n_k_TK, dqhat, dkhat, dv, dy_TC,
                                        dqkv, dhalo_vd})});
  const auto gradients = {dtau_K, db1_C};
  if (ctx.meta()) return plan_sum_over_tokens(ctx, T, gradients, s.C());
  with_real(qkv.dtype, [&]<typename Real>(Real) {
    using C = Cells<Real>;
    const QkGradientArgs<Real> args{
        s,        &sequence, C(rope_PR),  C(qkv),       C(y_TC),      C(b1_C),
        C(tau_K), C(n_q_TN), C(n_k_TK),   C(dqhat),     C(dkhat),     C(dv),
        C(dy_TC), C(dqkv),   C(dhalo_vd), C(q_sum_TKD), C(dq_sum_TKD)};
    run_summing_rows(ctx, T, gradients, args, qk_gradient_rows_fast, qk_gradient_rows<Real>, s.C());
  });
}

}  // namespace ashlar::kernels
