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
  pass_gradient(D, decays_.whole(), dk_, dv_, m_);
  to_panels({as_bytes(m_), DType::kBF16, dk_, dv_, dv_}, 1, nullptr, dk_, dv_, dk_, d_panels_);
  to_transposed_panels(m_, dk_, dv_, dt_panels_);
  multiply(rows_, dv_,
           {{pt_, kPairs, do_panels_, rows_, rows_, Zeros::kBelow}, {k_, dk_, d_panels_, dk_, dk_}},
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
    dbeta.set((part_.begin + i) * x_.shape.H + h, dots[i] / beta_[i]);
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
    keep_pairs(l_, strict, n_, rows_, to);
    transpose_pairs(to, transposed);
  };
  pairs(do_, false, dp_, dpt_);
  if (delta()) pairs(du_, true, dl_, dlt_);
}

void Heads::key_gradients(const float* M) {
  const int64_t state_depth = has_state() ? dv_ : 0;
  if (has_state()) {
    to_rows(values(M, dk_), 1, nullptr, dk_, dv_, m_);
    to_transposed_panels(m_, dk_, dv_, mt_panels_);
  }
  const auto read = [&](const bf16* from, const bf16* pairs, float* to) {
    multiply(rows_, dk_,
             {{from, dv_, mt_panels_, dv_, state_depth},
              {pairs, kPairs, k_panels_, rows_, rows_, Zeros::kAbove}},
             to, dk_);
  };
  read(do_, dp_, dq_);
  if (delta()) read(du_, dl_, dk_read_);
  const bf16* k_read_panels = k_read_ == k_ ? k_panels_ : k_read_panels_;
  const Term of_q{dpt_, kPairs, q_panels_, rows_, rows_, Zeros::kBelow},
      of_k{dlt_, kPairs, k_read_panels, rows_, delta() ? rows_ : 0, Zeros::kBelow},
      of_state{w_, dv_, dt_panels_, dv_, dv_};
  if (!gated()) return multiply(rows_, dk_, {of_q, of_k, of_state}, dk_pairs_, dk_);
  multiply(rows_, dk_, {of_q, of_k}, dk_pairs_, dk_);
  multiply(rows_, dk_, {of_state}, dk_state_, dk_);
}

void Heads::gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g) {
  const int64_t dk = x_.shape.dk, H = x_.shape.H;
  const bool channels = decays_.channels();
  const int64_t width = channels ? dk : 1, step = channels ? dk_ : 1;
  float *later = gates_, *state = later + kTile * dk_, *sum = state + kTile * dk_;
  std::fill_n(later, n_ * step, 0.0f);
  std::fill_n(state, n_ * step, 0.0f);
  const auto add = channels ? add_products : add_dots;
  add(q_, dq_, n_, dk_, 1, later);
  if (delta()) add(k_read_, dk_read_, n_, dk_, 1, later);
  add(k_, dk_pairs_, n_, dk_, -1, later);
  add(k_, dk_state_, n_, dk_, 1, state);
  std::fill_n(sum, dk_, 0.0f);  // <D, M>, D being passed through the decays
  if (has_state() && channels)
    ops_.add_dots(values(D, dk), M, dv_, 1, sum);
  else if (has_state())
    sum[0] = dot(D, M, dk_ * dv_);
  float* to = g.dlog_decay.as<float>() + (part_.begin * H + h) * width;
  const auto sums = channels ? sum_around : ops_.sum_around;
  sums(n_, width, step, state, later, sum, to, H * width);
  if (part_.starts) return void(std::fill_n(to, width, 0.0f));  // nothing passes its first token
  for (int64_t c = 0; c < width; ++c)
    if (decays_.drops(c)) to[c] = 0;
}

// Adds the head's gradients of queries and keys to those of the key head.
void Heads::add_key_gradients() {
  const int64_t size = n_ * dk_, row = (part_.begin - tile_.begin) * dk_;
  if (decays_.channels()) {
    scale_by(decays_.in(), n_, dk_, dq_);
    if (delta()) scale_by(decays_.in(), n_, dk_, dk_read_);
    sum_up(dk_state_, size, true, dk_pairs_);
    scale_by(decays_.inverse(), n_, dk_, dk_pairs_);
  }
  if (!adds_ && n_ == tile_.size()) {
    std::swap(dq_, dq_sum_);
    std::swap(dk_pairs_, dk_sum_);
  } else {
    sum_up(dq_, size, adds_, dq_sum_ + row);
    sum_up(dk_pairs_, size, adds_, dk_sum_ + row);
  }
  if (gated() && !decays_.channels()) sum_up(dk_state_, size, true, dk_sum_ + row);
  if (delta()) sum_up(dk_read_, size, true, dk_sum_ + row);
}

void Heads::backward_part(int64_t h, float* M, const Solved& solved, float* D,
                          const RecurrenceGradients& g) {
  if (has_state()) decays_.drop(M, dv_);
  written_gradient(h, solved, D, g);
  pair_gradients();
  key_gradients(M);
  if (g.dlog_decay) gates(h, M, D, g);
  add_key_gradients();
  if (!has_state()) return void(std::fill_n(D, dk_ * dv_, 0.0f));
  multiply(dk_, dv_,
           {{qt_, kPairs, do_panels_, rows_, rows_},
            {k_read_ == k_ ? kt_ : k_read_t_, kPairs, du_panels_, rows_, delta() ? rows_ : 0}},
           D, dv_, Sums::kAdd);
  decays_.drop(D, dv_);
}

void Heads::backward(int64_t h, float* M, const Solved& solved, float* D,
                     const RecurrenceGradients& g) {
  prefetch_tile(g.dout, h, x_.shape.dv);
  int64_t firsts[kTile], count = 0;  // of the parts
  for (int64_t t = tile_.begin; t < tile_.end; ++count) {
    firsts[count] = t;
    t = decays_.begin(h, {t, tile_.end, tile_.starts && t == tile_.begin}).end;
  }
  if (count > 1) std::copy_n(M, state_size(), saved_);
  for (int64_t i = count - 1; i >= 0; --i) {
    for (int64_t before = 0; before < i; ++before) {  // the states up to the part again
      if (before == 0) std::copy_n(saved_, state_size(), M);
      begin_part(h, firsts[before]);
      forward_part(h, M, Matrix{}, {});
    }
    if (i == 0 && count > 1) std::copy_n(saved_, state_size(), M);
    begin_part(h, firsts[i]);
    const int64_t row = firsts[i] - tile_.begin;
    backward_part(h, M, solved.from(row, dv_), D, g);
  }
  adds_ = true;
}

void Heads::finish(const RecurrenceGradients& g) {
  const int64_t n = tile_.size(), dk = x_.shape.dk;
  part_ = tile_;
  const auto put = [&](const float* sum, const Matrix& all) {
    const Matrix to = rows_of(all, j_, dk);
    ops_.stream(view(sum, n, dk, dk_), 1, reinterpret_cast<float*>(to.data), to.stride);
  };
  put(dq_sum_, g.dq);
  put(dk_sum_, g.dk);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
