#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

// D is passed through the decays; dw_ becomes the gradient of V' - K M - L W', and is stored as
// that of V.
void Heads::written_gradient(int64_t h, const Solved& solved, float* D,
                             const RecurrenceGradients& g) {
  const Matrix dout = rows_of(g.dout, h, x_.shape.dv), dv = rows_of(g.dv, h, x_.shape.dv);
  to_rows(dout, 1, factors_, rows_, dv_, do_);
  to_panels({as_bytes(do_), DType::kBF16, rows_, dv_, dv_}, 1, nullptr, rows_, dv_, rows_,
            do_panels_);
  pass_gradient(D, decays_.made(), decays_.passed(), dk_, dv_, m_);
  to_panels({as_bytes(m_), DType::kBF16, dk_, dv_, dv_}, 1, nullptr, dk_, dv_, dk_, d_panels_);
  to_transposed_panels(m_, dk_, dv_, dt_panels_);
  multiply(rows_, dv_,
           {{pairs_t_, kPairs, do_panels_, rows_, rows_, Zeros::kBelow},
            {k_made_, dk_, d_panels_, dk_, dk_}},
           dw_, dv_);
  if (delta()) {
    to_rows({as_bytes(solved.w), DType::kBF16, n_, dv_, dv_}, 1, nullptr, rows_, dv_, w_);
    to_rows({as_bytes(solved.s), DType::kBF16, n_, kPairs, kPairs}, 1, nullptr, rows_, kPairs, s_);
    transpose_pairs(s_, st_);
    solve_back(g, h);
  } else {
    to_rows(values_of(x_.v, h), 1, if_rows(decays_.inverse()), rows_, dv_, w_);
  }
  for (int64_t i = 0; i < n_; ++i)
    factors_[i] = (delta() ? beta_[i] : 1) * (decays_.rows() ? decays_.inverse()[i] : 1);
  store_rows(dw_, dv_, factors_, dv);
}

// dw_ becomes R, the gradient of X / beta; fills what is read of -beta R.
void Heads::solve_back(const RecurrenceGradients& g, int64_t h) {
  for (int64_t first = rows_ - kBlock; first >= 0; first -= kBlock) {
    float* own = dw_ + first * dv_;
    const bf16* s = st_ + first * kPairs;
    if (first + kBlock < rows_)
      multiply(kBlock, dv_, {{s + kBlock, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_,
               Sums::kAdd);
    panels_of(own, kBlock, tmp_panels_, kBlock);
    multiply(kBlock, dv_, {{s + first, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_, Sums::kAdd);
    if (first > 0) panels_of(own, kBlock, tmp_panels_, kBlock);
  }
  float dots[kTile] = {};
  add_dots(w_, dw_, n_, dv_, 1, dots);
  const Cells<float> dbeta(g.dbeta_TH);
  for (int64_t i = 0; i < n_; ++i)
    dbeta.set((tile_.begin + i) * x_.shape.H + h, dots[i] / beta_[i]);
  to_rows(values(dw_, n_), -1, beta_, rows_, dv_, du_);
  to_panels({as_bytes(du_), DType::kBF16, rows_, dv_, dv_}, 1, nullptr, rows_, dv_, rows_,
            du_panels_);
}

// dP and dL, masked, by rows and transposed.
void Heads::pair_gradients() {
  to_transposed_panels(w_, rows_, dv_, wt_panels_);
  const auto pairs = [&](const bf16* from, bool strict, bf16* to, bf16* transposed) {
    multiply(rows_, rows_, {{from, dv_, wt_panels_, dv_, dv_}}, l_, kPairs, Sums::kSet,
             Blocks::kLower);
    keep_pairs({decays_.between(), n_, rows_}, l_, strict, to);
    transpose_pairs(to, transposed);
  };
  pairs(do_, false, dp_, dpt_);
  if (delta()) pairs(du_, true, dl_, dlt_);
}

void Heads::scale_gradient(const float* factors, float* x) {
  decays_.channels() ? scale_by(factors, n_, dk_, x)
                     : ops_.scale(view(x, n_, dk_, dk_), factors, x, dk_);
}

void Heads::key_gradients(const float* M) {
  const int64_t state_depth = has_state() ? dv_ : 0;
  const bool in_segments = cut_ && decays_.channels();
  if (has_state()) {
    to_rows(values(M, dk_), 1, nullptr, dk_, dv_, m_);
    to_transposed_panels(m_, dk_, dv_, mt_panels_);
  }
  const auto read = [&](const bf16* from, const bf16* pairs, float* to) {
    const Term of_state{from, dv_, mt_panels_, dv_, state_depth},
        of_pairs{pairs, kPairs, k_panels_, rows_, rows_, Zeros::kAbove};
    if (!cut_) return multiply(rows_, dk_, {of_state, of_pairs}, to, dk_);
    multiply(rows_, dk_, {of_state}, to, dk_);
    scale_gradient(decays_.from_state(), to);
    if (!in_segments) multiply(rows_, dk_, {of_pairs}, to, dk_, Sums::kAdd);
  };
  read(do_, dp_, dq_);
  if (delta()) read(du_, dl_, dk_read_);
  const bf16* k_read_panels = k_read_ == k_ ? k_panels_ : k_read_panels_;
  const Term of_q{dpt_, kPairs, q_panels_, rows_, rows_, Zeros::kBelow},
      of_k{dlt_, kPairs, k_read_panels, rows_, delta() ? rows_ : 0, Zeros::kBelow},
      of_state{w_, dv_, dt_panels_, dv_, dv_};
  if (!gated() && !cut_) return multiply(rows_, dk_, {of_q, of_k, of_state}, dk_pairs_, dk_);
  multiply(rows_, dk_, {of_state}, dk_state_, dk_);
  if (cut_) scale_gradient(decays_.to_end(), dk_state_);
  if (!in_segments) return multiply(rows_, dk_, {of_q, of_k}, dk_pairs_, dk_);
  std::fill_n(gates_, n_ * dk_, 0.0f);
  add_products(q_, dq_, n_, dk_, 1, gates_);
  if (delta()) add_products(k_read_, dk_read_, n_, dk_, 1, gates_);
  segment_gradients();
}

void Heads::gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g) {
  const int64_t dk = x_.shape.dk, H = x_.shape.H;
  const bool channels = decays_.channels();
  const int64_t width = channels ? dk : 1, step = channels ? dk_ : 1;
  float *later = gates_, *state = later + kTile * dk_, *sum = state + kTile * dk_;
  std::fill_n(state, n_ * step, 0.0f);
  const auto add = channels ? add_products : add_dots;
  if (!channels || !cut_) {
    std::fill_n(later, n_ * step, 0.0f);
    add(q_, dq_, n_, dk_, 1, later);
    if (delta()) add(k_read_, dk_read_, n_, dk_, 1, later);
    add(k_, dk_pairs_, n_, dk_, -1, later);
  }
  add(k_, dk_state_, n_, dk_, 1, state);
  std::fill_n(sum, dk_, 0.0f);  // <D, M>, D being passed through the decays
  if (has_state() && channels)
    ops_.add_dots(values(D, dk), M, dv_, 1, sum);
  else if (has_state())
    sum[0] = dot(D, M, dk_ * dv_);
  float* to = g.dlog_decay.as<float>() + (tile_.begin * H + h) * width;
  const auto sums = channels ? sum_around : ops_.sum_around;
  sums(n_, width, step, state, later, sum, to, H * width);
  if (tile_.starts) std::fill_n(to, width, 0.0f);  // nothing passes the start of a document
}

// Adds the head's gradients of queries and keys to those of the key head.
void Heads::add_key_gradients() {
  const int64_t size = n_ * dk_;
  if (decays_.channels() && !cut_) {
    scale_by(decays_.in(), n_, dk_, dq_);
    if (delta()) scale_by(decays_.in(), n_, dk_, dk_read_);
    sum_up(dk_state_, size, true, dk_pairs_);
    scale_by(decays_.inverse(), n_, dk_, dk_pairs_);
  }
  if (!adds_) {
    std::swap(dq_, dq_sum_);
    std::swap(dk_pairs_, dk_sum_);
  } else {
    sum_up(dq_, size, true, dq_sum_);
    sum_up(dk_pairs_, size, true, dk_sum_);
  }
  if (cut_ || (gated() && !decays_.channels())) sum_up(dk_state_, size, true, dk_sum_);
  if (delta()) sum_up(dk_read_, size, true, dk_sum_);
  adds_ = true;
}

void Heads::backward(int64_t h, float* M, const Solved& solved, float* D,
                     const RecurrenceGradients& g) {
  prefetch_tile(g.dout, h, x_.shape.dv);
  begin_head(h);
  if (has_state()) decays_.pass_first(M, dv_);
  written_gradient(h, solved, D, g);
  pair_gradients();
  key_gradients(M);
  if (g.dlog_decay) gates(h, M, D, g);
  add_key_gradients();
  if (!has_state()) return void(std::fill_n(D, dk_ * dv_, 0.0f));
  multiply(dk_, dv_,
           {{qt_state_, kPairs, do_panels_, rows_, rows_},
            {kt_state_, kPairs, du_panels_, rows_, delta() ? rows_ : 0}},
           D, dv_, Sums::kAdd);
  decays_.pass_first(D, dv_);
}

void Heads::finish(const RecurrenceGradients& g) {
  const int64_t n = tile_.size(), dk = x_.shape.dk;
  const auto put = [&](const float* sum, const Matrix& all) {
    const Matrix to = rows_of(all, j_, dk);
    ops_.stream(view(sum, n, dk, dk_), 1, reinterpret_cast<float*>(to.data), to.stride);
  };
  put(dq_sum_, g.dq);
  put(dk_sum_, g.dk);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
