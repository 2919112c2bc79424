#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

// Fills do_, W' and the factors of dv; D is passed through the decays.
void Heads::take_dout(int64_t h, const Solved& solved, float* D, const RecurrenceGradients& g) {
  to_rows(rows_of(g.dout, h, x_.shape.dv), 1, factors_, rows_, dv_, do_);
  to_panels({as_bytes(do_), DType::kBF16, rows_, dv_, dv_}, 1, nullptr, rows_, dv_, rows_,
            do_panels_);
  pass_gradient(D, decays_.made(), decays_.passed(), dk_, dv_, m_);
  to_panels({as_bytes(m_), DType::kBF16, dk_, dv_, dv_}, 1, nullptr, dk_, dv_, dk_, d_panels_);
  to_transposed_panels(m_, dk_, dv_, dt_panels_);
  const auto whole = [&](const bf16* x, int64_t cols, bf16* rows) -> const bf16* {
    if (n_ == rows_) return x;
    to_rows({as_bytes(x), DType::kBF16, n_, cols, cols}, 1, nullptr, rows_, cols, rows);
    return rows;
  };
  if (delta()) {
    w_ = whole(solved.w, dv_, w_rows_);
    st_ = whole(solved.st, kPairs, st_rows_);
  } else {
    to_rows(values_of(x_.v, h), 1, if_rows(decays_.inverse()), rows_, dv_, w_rows_);
    w_ = w_rows_;
  }
  for (int64_t i = 0; i < n_; ++i)
    factors_[i] = (delta() ? beta_[i] : 1) * (decays_.rows() ? decays_.inverse()[i] : 1);
}

// The gradient of V' - K M - L W', stored as that of V.
void Heads::written_gradient(int64_t h, const RecurrenceGradients& g) {
  const Matrix dv = rows_of(g.dv, h, x_.shape.dv);
  const Term pairs{pairs_t_, kPairs, do_panels_, rows_, rows_, Zeros::kBelow},
      state{k_made_, dk_, d_panels_, dk_, dk_};
  if (delta()) return solve_back(pairs, state, h, g);
  for_blocks(
      n_, dv_, Blocks::kAll,
      [&](int64_t i, int64_t c, float* block) {
        block_of(i, c, {pairs, state}, block);
      },
      [&](int64_t i, int64_t c, const float* block) {
        store_rows(block, kBlock, factors_ + i, part(dv, i, c));
      });
}

// From the last block to the first: R, the gradient of X / beta, and what is read of -beta R.
void Heads::solve_back(const Term& pairs, const Term& state, int64_t h,
                       const RecurrenceGradients& g) {
  const Matrix dv = rows_of(g.dv, h, x_.shape.dv);
  alignas(64) float lanes[kTile * kLanes] = {};
  for (int64_t first = rows_ - kBlock; first >= 0; first -= kBlock) {
    const bool later = first + kBlock < rows_;
    const Term solved{st_ + kBlock, kPairs, r_panels_, kBlock, later ? kBlock : 0};
    for_blocks(
        kBlock, dv_, Blocks::kAll,
        [&](int64_t, int64_t c, float* block) {
          block_of(first, c, {pairs, state, solved}, block);
        },
        [&](int64_t, int64_t c, const float* block) {
          ask_block({.v = {}, .beta = nullptr, .factors = nullptr, .read = nullptr, .cols = dv_},
                    block, x_rows_ + c, in_panels(x_panels_, kBlock, 0, c));
        });
    for_blocks(
        kBlock, dv_, Blocks::kAll,
        [&](int64_t, int64_t c, float* block) {
          block_of(0, c, {{st_ + first * kPairs + first, kPairs, x_panels_, kBlock, kBlock}},
                   block);
        },
        [&](int64_t, int64_t c, float* block) {
          const int64_t at = first * dv_ + c;
          return_block(
              {beta_ + first, w_ + at, dv_, du_ + at, in_panels(du_panels_, rows_, first, c),
               first > 0 ? in_panels(r_panels_, kBlock, 0, c) : nullptr, lanes + first * kLanes},
              x_rows_ + c, block);
          store_rows(block, kBlock, factors_ + first, part(dv, first, c));
        });
  }
  float dots[kTile];
  sum_lanes(lanes, n_, dots);
  const Cells<float> dbeta(g.dbeta_TH);
  for (int64_t i = 0; i < n_; ++i)
    dbeta.set((tile_.begin + i) * x_.shape.H + h, dots[i] / beta_[i]);
}

// dP and dL, masked, by rows and transposed.
void Heads::pair_gradients() {
  to_transposed_panels(w_, rows_, dv_, wt_panels_);
  const auto pairs = [&](const bf16* from, bool strict, bf16* to, bf16* transposed) {
    const Term term{from, dv_, wt_panels_, dv_, dv_};
    if (!cut_) return keep_product(term, strict, to, transposed);
    multiply(rows_, rows_, {term}, l_, kPairs, Sums::kSet, Blocks::kLower);
    keep_pairs({decays_.between(), n_, rows_}, l_, strict, to);
    transpose_pairs(to, transposed);
  };
  pairs(do_, false, dp_, dpt_);
  if (delta()) pairs(du_, true, dl_, dlt_);
}

void Heads::take(std::initializer_list<Term> terms, const Gradient& gradient, float* sum,
                 bool& adds, const Matrix* to) {
  for_blocks(
      rows_, dk_, Blocks::kAll,
      [&](int64_t i, int64_t c, float* block) { block_of(i, c, terms, block); },
      [&](int64_t i, int64_t c, float* block) {
        float* own = sum + i * dk_ + c;
        const float* from = adds ? own : nullptr;
        if (!to) return take_gradient(gradient, i, c, block, from, own, dk_);
        take_gradient(gradient, i, c, block, from, block, kBlock);
        store_rows(block, kBlock, nullptr, part(*to, i, c));
      });
  adds = true;
}

// The gradients of queries and keys, and with gates their products with queries and keys.
void Heads::key_gradients(int64_t h, const float* M, const RecurrenceGradients& g) {
  const bool channels = decays_.channels(), in_segments = cut_ && channels;
  if (has_state()) {
    to_rows(values(M, dk_), 1, nullptr, dk_, dv_, m_);
    to_transposed_panels(m_, dk_, dv_, mt_panels_);
  }
  float *later = g.dlog_decay ? gates_ : nullptr, *state = later ? gates_ + kTile * dk_ : nullptr;
  if (later) std::fill_n(gates_, 2 * kTile * dk_, 0.0f);
  const Matrix dq = rows_of(g.dq, j_, x_.shape.dk), dk = rows_of(g.dk, j_, x_.shape.dk);
  const Matrix *dq_last = is_last(h) ? &dq : nullptr, *dk_last = is_last(h) ? &dk : nullptr;
  const float* in = cut_ ? decays_.from_state() : channels ? decays_.in() : nullptr;
  const float* inverse = channels && !cut_ ? decays_.inverse() : nullptr;
  const auto gradient = [&](const bf16* of, const float* by, float* products, float sign = 1) {
    return Gradient{of, by, products, sign, channels, dk_};
  };
  const auto read = [&](const bf16* from, const bf16* pairs, const bf16* reader, const bf16* of,
                        float* sum, bool& adds, const Matrix* to) {
    const Term of_state{from, dv_, mt_panels_, dv_, has_state() ? dv_ : 0},
        of_pairs{pairs, kPairs, k_panels_, rows_, rows_, Zeros::kAbove};
    if (!cut_) return take({of_state, of_pairs}, gradient(of, in, later), sum, adds, to);
    take({of_state}, gradient(reader, in, later), sum, adds, nullptr);
    if (!in_segments) take({of_pairs}, gradient(of, nullptr, later), sum, adds, to);
  };
  read(do_, dp_, q_state_, q_, dq_sum_, dq_adds_, dq_last);
  if (delta()) read(du_, dl_, k_state_, k_read_, dk_sum_, dk_adds_, nullptr);
  const bf16* k_read_panels = k_read_ == k_ ? k_panels_ : k_read_panels_;
  const Term of_q{dpt_, kPairs, q_panels_, rows_, rows_, Zeros::kBelow},
      of_k{dlt_, kPairs, k_read_panels, rows_, delta() ? rows_ : 0, Zeros::kBelow},
      of_state{w_, dv_, dt_panels_, dv_, dv_};
  if (!gated() && !cut_)
    return take({of_q, of_k, of_state}, gradient(k_, nullptr, nullptr), dk_sum_, dk_adds_, dk_last);
  if (in_segments)
    segment_gradients(dq_last);
  else
    take({of_q, of_k}, gradient(k_, inverse, later, -1), dk_sum_, dk_adds_, nullptr);
  take({of_state}, gradient(k_made_, cut_ ? decays_.to_end() : inverse, state), dk_sum_, dk_adds_,
       dk_last);
}

void Heads::gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g) {
  const int64_t dk = x_.shape.dk, H = x_.shape.H, width = decays_.channels() ? dk : 1;
  float *later = gates_, *state = later + kTile * dk_, *sum = state + kTile * dk_;
  float* to = g.dlog_decay.as<float>() + (tile_.begin * H + h) * width;
  std::fill_n(sum, dk_, 0.0f);  // <D, M>, D being passed through the decays
  if (decays_.channels()) {
    if (has_state()) ops_.add_dots(values(D, dk), M, dv_, 1, sum);
    sum_around(n_, dk, dk_, state, later, sum, to, H * dk);
  } else {
    float of_later[kTile], of_state[kTile];
    sum_lanes(later, n_, of_later);
    sum_lanes(state, n_, of_state);
    if (has_state()) sum[0] = dot(D, M, dk_ * dv_);
    ops_.sum_around(n_, 1, 1, of_state, of_later, sum, to, H);
  }
  if (tile_.starts) std::fill_n(to, width, 0.0f);  // nothing passes the start of a document
}

void Heads::backward(int64_t h, float* M, const Solved& solved, float* D,
                     const RecurrenceGradients& g) {
  prefetch_tile(g.dout, h, x_.shape.dv);
  begin_head(h);
  if (has_state()) decays_.pass_first(M, dv_);
  take_dout(h, solved, D, g);
  written_gradient(h, g);
  pair_gradients();
  key_gradients(h, M, g);
  if (g.dlog_decay) gates(h, M, D, g);
  if (!has_state()) return void(std::fill_n(D, dk_ * dv_, 0.0f));
  multiply(dk_, dv_,
           {{qt_state_, kPairs, do_panels_, rows_, rows_},
            {kt_state_, kPairs, du_panels_, rows_, delta() ? rows_ : 0}},
           D, dv_, Sums::kAdd);
  decays_.pass_first(D, dv_);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
