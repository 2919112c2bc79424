// How it works.  The plain arithmetic, token by token and head by head.  X is Q_h or K_j before the
// norm, g the gradient of its hat turned back by the angles of RoPE.  Backward of a head:
//
//   dX    = tau sqrt(d) / n (g - X/n <g, X/n>)      tau is 1 for queries; along = <g, X/n>
//   dtau += sqrt(d) <g, X/n>                        for keys
//   db1  += dX,  dy = dX                            X is a sum with y and b1
//
// The mean couples a key with its queries, so its dz needs dX of all heads of the token:
//
//   dz of q_h = dQ_h / 2 + dK_j / (2 G)             K_j has half the mean of G queries
//   dz of k_j = dK_j / 2 + sum of dQ_h / 2          each of its queries has half of k_j
//
// X is not kept: mixed() recomputes it wherever it is read.
#include <cmath>

#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/qk_args.h"
#include "ashlar/kernels/cpu/rope_args.h"

namespace ashlar::kernels::cpu {
namespace {

// The arithmetic of one token.  Heads are numbered 0 .. N-1 (queries), N .. N+K-1 (keys): head h is
// channels [h D, (h + 1) D) of qkv, y and b1.
template <typename T>
struct Token {
  const QkShape& s;
  Cells<T> qkv;
  Cells<T> y = {}, b1 = {}, q_sum = {};
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

// Puts dX of one head into dx [D]; returns the head's share of dtau, which counts for keys.
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

// dz of one head of token t by the formulas above; dq_sum has the queries of other ranks too.
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
  const DelayedNeighbours p = delayed_neighbours_of(*x.sequence, t);
  for (int64_t i = 0; i < current; ++i) x.dqkv.set(to + i, x.dv[t * KD + i]);
  for (int64_t i = 0; i < delayed; ++i) {
    // v of token t + 1 has vd of t.  After a segment's last token halo_backward brings it.
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
void query_sum_rows(const QuerySumArgs<T>& x, int64_t begin, int64_t end) {
  const int64_t D = x.s.D, KD = x.s.K * D;
  for (int64_t t = begin; t < end; ++t) {
    const Token<T> token{.s = x.s, .qkv = x.qkv, .t = t};
    for (int64_t c = 0; c < KD; ++c) x.q_sum.set(t * KD + c, token.local_query_sum(c / D, c % D));
  }
}

template <typename T>
void value_row(const QkArgs<T>& x, int64_t t) {
  const int64_t KD = x.s.K * x.s.D, delayed = x.s.num_delayed(), current = KD - delayed;
  const int64_t width = x.s.C() + KD, from = t * width + x.s.C();
  const DelayedNeighbours p = delayed_neighbours_of(*x.sequence, t);
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

void qk_query_sums(const Context& ctx, const QkShape& s, const Tensor& qkv,
                   const Tensor& q_sum_TKD) {
  with_real(q_sum_TKD.dtype, [&]<typename Real>(Real) {
    const QuerySumArgs<Real> args{.s = s, .qkv = qkv, .q_sum = q_sum_TKD};
    run_rows(ctx, qkv.shape[0], args, qk_query_sum_rows_fast, query_sum_rows<Real>);
  });
}

void qk_query_gradient_sums(const Context& ctx, const QkQueryGradientSums& x) {
  const int64_t T = x.sequence.num_tokens();
  const Tensor none{.dtype = x.b1_C.dtype};  // no gradient of a parameter, but scratch
  with_real(x.b1_C.dtype, [&]<typename Real>(Real) {
    const QkGradientArgs<Real> args{.s = x.shape,
                                    .sequence = &x.sequence,
                                    .rope = x.rope_PR,
                                    .qkv = x.qkv,
                                    .y = x.y_TC,
                                    .b1 = x.b1_C,
                                    .n_q = x.n_q_TN,
                                    .dqhat = x.dqhat,
                                    .dq_sum = x.dq_sum_TKD};
    run_summing_rows(ctx, T, {none}, args, qk_query_gradient_sum_rows_fast,
                     query_gradient_sum_rows<Real>, x.shape.D);
  });
}

void qk_forward(const Context& ctx, const QkForward& x) {
  const int64_t T = x.sequence.num_tokens();
  with_real(x.b1_C.dtype, [&]<typename Real>(Real) {
    const QkArgs<Real> args{.s = x.shape,
                            .sequence = &x.sequence,
                            .rope = x.rope_PR,
                            .qkv = x.qkv,
                            .y = x.y_TC,
                            .b1 = x.b1_C,
                            .tau = x.tau_K,
                            .halo_vd = x.halo_vd,
                            .q_sum = x.q_sum_TKD,
                            .qhat = x.qhat,
                            .khat = x.khat,
                            .v = x.v,
                            .n_q = x.n_q_TN,
                            .n_k = x.n_k_TK};
    run_rows(ctx, T, args, qk_rows_fast, qk_rows<Real>);
  });
}

void qk_backward(const Context& ctx, const QkBackward& x) {
  const int64_t T = x.sequence.num_tokens();
  with_real(x.b1_C.dtype, [&]<typename Real>(Real) {
    const QkGradientArgs<Real> args{.s = x.shape,
                                    .sequence = &x.sequence,
                                    .rope = x.rope_PR,
                                    .qkv = x.qkv,
                                    .y = x.y_TC,
                                    .b1 = x.b1_C,
                                    .tau = x.tau_K,
                                    .n_q = x.n_q_TN,
                                    .n_k = x.n_k_TK,
                                    .q_sum = x.q_sum_TKD,
                                    .dqhat = x.dqhat,
                                    .dkhat = x.dkhat,
                                    .dv = x.dv,
                                    .dq_sum = x.dq_sum_TKD,
                                    .dy = x.dy_TC,
                                    .dqkv = x.dqkv,
                                    .dhalo_vd = x.dhalo_vd};
    run_summing_rows(ctx, T, {x.dtau_K, x.db1_C}, args, qk_gradient_rows_fast,
                     qk_gradient_rows<Real>, x.shape.C());
  });
}

}  // namespace ashlar::kernels::cpu
