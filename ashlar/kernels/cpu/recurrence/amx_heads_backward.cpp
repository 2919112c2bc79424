#include <numeric>

#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

// Queries, keys and what forward left of the head.
void Heads::restore(int64_t h, const Solved& solved) {
  begin_head(h);
  const PairDecays pairs = decays_.pairs(n_, rows_);
  keep_pairs(pairs, qk_, p_);
  to_panels(p_, rows_, kPairs, rows_, tmp_pairs_);
  to_transposed_rows(tmp_pairs_, rows_, kPairs, pt_, kPairs);
  if (!decays_.channels()) to_rows(keys(k_), 1, decays_.out(), rows_, dk_, k_out_);
  if (!delta()) return to_rows(values_of(x_.v, h), 1, nullptr, rows_, dv_, w_rows_);
  to_rows({as_bytes(solved.w), DType::kBF16, n_, dv_, dv_}, 1, nullptr, rows_, dv_, w_rows_);
  to_rows({as_bytes(solved.s), DType::kBF16, n_, kPairs, kPairs}, 1, nullptr, rows_, kPairs, s_);
  to_panels(s_, rows_, kPairs, rows_, tmp_pairs_);
  to_transposed_rows(tmp_pairs_, rows_, kPairs, st_, kPairs);
}

void Heads::take_dout(int64_t h, const Matrix& dout) {
  const Matrix from = rows_of(dout, h, x_.shape.dv);
  const auto scale = float(x_.shape.scale);
  to_rows(from, scale, nullptr, rows_, dv_, do_);
  to_panels(do_, rows_, dv_, rows_, do_panels_);
  if (decays_.channels()) return;
  to_rows(from, scale, decays_.in(), rows_, dv_, do_in_);
  to_panels(do_in_, rows_, dv_, rows_, do_in_panels_);
}

// dw_ becomes the gradient of V - (K e^c) M - L W; D is passed through the tile's decays.
void Heads::written_gradient(float* D) {
  pass_state(D, decays_.whole(), dk_, dv_, m_);
  to_panels(m_, dk_, dv_, dk_, d_panels_);
  to_transposed_panels(m_, dv_, dk_, dv_, dt_panels_);
  const Term pairs{pt_, kPairs, do_panels_, rows_, rows_, Zeros::kBelow},
      state{k_out_, dk_, d_panels_, dk_, dk_};
  multiply(rows_, dv_, {pairs, state}, dw_, dv_);
}

// dw_ becomes R, the gradient of X / beta, then dU = beta R; fills what is read of -dU.
void Heads::solve_back(const RecurrenceGradients& g, int64_t h) {
  for (int64_t first = rows_ - kBlock; first >= 0; first -= kBlock) {
    float* own = dw_ + first * dv_;
    const bf16* s = st_ + first * kPairs;
    if (first + kBlock < rows_)
      multiply(kBlock, dv_, {{s + kBlock, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_,
               Sums::kAdd);
    panels_of(own, kBlock, nullptr, tmp_panels_, kBlock);
    multiply(kBlock, dv_, {{s + first, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_, Sums::kAdd);
    if (first > 0) panels_of(own, kBlock, nullptr, tmp_panels_, kBlock);
  }
  float dots[Recurrence::kTile] = {};
  add_dots(w_rows_, dw_, n_, dv_, 1, dots);
  const Cells<float> dbeta(g.dbeta_TH);
  for (int64_t i = 0; i < n_; ++i)
    dbeta.set((tile_.begin + i) * x_.shape.H + h, dots[i] / beta_[i]);

  ops_.scale(values(dw_, n_), beta_, dw_, dv_);
  to_rows(values(dw_, n_), -1, nullptr, rows_, dv_, du_);
  const float* in = decays_.channels() ? nullptr : decays_.in();
  to_rows(values(dw_, n_), -1, in, rows_, dv_, du_in_);
  to_panels(du_in_, rows_, dv_, rows_, du_in_panels_);
}

// dP and dL, masked and with decays, by rows and transposed.
void Heads::pair_gradients() {
  to_transposed_panels(w_rows_, dv_, rows_, dv_, wt_panels_);
  const auto pairs = [&](const bf16* from, bool strict, bf16* to, bf16* transposed) {
    multiply(rows_, rows_, {{from, dv_, wt_panels_, dv_, dv_}}, l_, kPairs, Sums::kSet,
             Blocks::kLower);
    const PairDecays decays = decays_.pairs(n_, rows_);
    strict ? keep_earlier(decays, l_, to) : keep_pairs(decays, l_, to);
    to_panels(to, rows_, kPairs, rows_, tmp_pairs_);
    to_transposed_rows(tmp_pairs_, rows_, kPairs, transposed, kPairs);
  };
  pairs(do_, false, dp_, dpt_);
  if (delta()) pairs(du_, true, dl_, dlt_);
}

void Heads::key_gradients(const float* M) {
  const bool channels = decays_.channels();
  const int64_t state_depth = has_state() ? dv_ : 0, pair_depth = channels ? 0 : rows_;
  if (has_state()) {
    to_rows(values(M, dk_), 1, nullptr, dk_, dv_, m_);
    to_transposed_panels(m_, dv_, dk_, dv_, mt_panels_);
  }
  const auto read = [&](const bf16* from, const bf16* pairs, float* to) {
    multiply(rows_, dk_,
             {{from, dv_, mt_panels_, dv_, state_depth},
              {pairs, kPairs, k_panels_, rows_, pair_depth, Zeros::kAbove}},
             to, dk_);
    if (channels) scale_by(decays_.in(), n_, dk_, to);
  };
  read(channels ? do_ : do_in_, dp_, dq_);
  if (delta()) read(channels ? du_ : du_in_, dl_, dk_read_);
  if (channels) {
    std::fill_n(gates_, n_ * dk_, 0.0f);
    ops_.add_products(keys(q_), dq_, dk_, 1, gates_);
    if (delta()) ops_.add_products(keys(k_), dk_read_, dk_, 1, gates_);
    segment_gradients();
  } else {
    multiply(rows_, dk_,
             {{dpt_, kPairs, q_panels_, rows_, rows_, Zeros::kBelow},
              {dlt_, kPairs, k_panels_, rows_, delta() ? rows_ : 0, Zeros::kBelow}},
             dk_pairs_, dk_);
  }
  const bf16* w = w_rows_;
  if (!channels) {
    to_rows({as_bytes(w_rows_), DType::kBF16, n_, dv_, dv_}, 1, decays_.out(), rows_, dv_, w_out_);
    w = w_out_;
  }
  multiply(rows_, dk_, {{w, dv_, dt_panels_, dv_, dv_}}, dk_state_, dk_);
  if (channels) scale_by(decays_.out(), n_, dk_, dk_state_);
}

// Gates of channels: adds to dq_ and dk_read_ the part through pairs, and fills dk_pairs_.  The
// gradient of a gate comes from the rounded factors that both products read, so that a pair's two
// parts cancel where the gate does not lie between its tokens.
void Heads::segment_gradients() {
  std::fill_n(dk_pairs_, rows_ * dk_, 0.0f);
  for_segments([&](int64_t first, int64_t end, int64_t rows) {
    const int64_t depth = round_up(end, kBlock);
    const auto reader = [&](const bf16* x, const bf16* dp, const bf16* dpt, float* dx) {
      to_rows_by(keys(k_).row_range(0, end), decays_.earlier(), depth, dk_, keys_tmp_);
      to_panels(keys_tmp_, depth, dk_, depth, k_panels_);
      to_rows_by(keys(x).row_range(first, end), decays_.later(first), rows, dk_, x_later_);
      multiply(rows, dk_, {{dp + first * kPairs, kPairs, k_panels_, depth, depth}}, product_, dk_);
      add_by(product_, decays_.later(first), end - first, dk_, dx + first * dk_);
      ops_.add_products(keys(x_later_).row_range(0, end - first), product_, dk_, 1,
                        gates_ + first * dk_);
      to_panels(x_later_, rows, dk_, rows, q_panels_);
      multiply(depth, dk_, {{dpt + first, kPairs, q_panels_, rows, rows}}, product_, dk_);
      add_by(product_, decays_.earlier(), end, dk_, dk_pairs_);
      ops_.add_products(keys(keys_tmp_).row_range(0, end), product_, dk_, -1, gates_);
    };
    reader(q_, dp_, dpt_, dq_);
    if (delta()) reader(k_, dl_, dlt_, dk_read_);
  });
}

void Heads::gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g) {
  const int64_t dk = x_.shape.dk, H = x_.shape.H;
  const bool channels = decays_.channels();
  const int64_t width = channels ? dk : 1, step = channels ? dk_ : 1;
  float *later = gates_, *state = later + Recurrence::kTile * dk_,
        *sum = state + Recurrence::kTile * dk_;
  std::fill_n(state, n_ * step, 0.0f);
  if (channels) {
    ops_.add_products(keys(k_), dk_state_, dk_, 1, state);
  } else {
    std::fill_n(later, n_, 0.0f);
    add_dots(q_, dq_, n_, dk_, 1, later);
    if (delta()) add_dots(k_, dk_read_, n_, dk_, 1, later);
    add_dots(k_, dk_pairs_, n_, dk_, -1, later);
    add_dots(k_, dk_state_, n_, dk_, 1, state);
  }
  std::fill_n(sum, dk_, 0.0f);  // <D, M>, D being passed through the decays
  if (has_state() && channels)
    ops_.add_dots(values(D, dk), M, dv_, 1, sum);
  else if (has_state())
    sum[0] = dot(D, M, dk_ * dv_);
  float* to = g.dlog_decay.as<float>() + (tile_.begin * H + h) * width;
  ops_.sum_around(n_, width, step, state, later, sum, to, H * width);
  if (tile_.starts) std::fill_n(to, width, 0.0f);  // nothing passes the start of a document
}

// Adds up the gradients of the key head over its value heads.
void Heads::store(int64_t h, const RecurrenceGradients& g) {
  const bool first = h % group() == 0, last = (h + 1) % group() == 0;
  const Matrix dv = rows_of(g.dv, h, x_.shape.dv);
  ops_.stream(view(dw_, n_, x_.shape.dv, dv_), 1, reinterpret_cast<float*>(dv.data), dv.stride);
  const auto add = [&](const float* x, float* to, bool set) {
    set ? ops_.copy(view(x, n_, dk_, dk_), 1, to, dk_) : ops_.add(view(x, n_, dk_, dk_), to, dk_);
  };
  add(dq_, dq_sum_, first);
  add(dk_pairs_, dk_sum_, first);
  add(dk_state_, dk_sum_, false);
  if (delta()) add(dk_read_, dk_sum_, false);
  if (!last) return;
  const auto put = [&](const float* sum, const Matrix& all) {
    const Matrix to = rows_of(all, j_, x_.shape.dk);
    ops_.stream(view(sum, n_, x_.shape.dk, dk_), 1, reinterpret_cast<float*>(to.data), to.stride);
  };
  put(dq_sum_, g.dq);
  put(dk_sum_, g.dk);
}

void Heads::advance_gradient(float* D) {
  if (!has_state()) return void(std::fill_n(D, dk_ * dv_, 0.0f));
  const bf16 *qt = qt_rows_, *kt = kt_rows_, *dout = do_in_panels_, *du = du_in_panels_;
  if (decays_.channels()) {
    to_panels(q_in_, rows_, dk_, rows_, keys_tmp_);
    to_transposed_rows(keys_tmp_, rows_, dk_, qt_rows_, kPairs);
    dout = do_panels_;
    if (delta()) {
      to_panels(k_in_, rows_, dk_, rows_, keys_tmp_);
      to_transposed_rows(keys_tmp_, rows_, dk_, kt_rows_, kPairs);
    }
  }
  multiply(dk_, dv_,
           {{qt, kPairs, dout, rows_, rows_}, {kt, kPairs, du, rows_, delta() ? rows_ : 0}}, D, dv_,
           Sums::kAdd);
}

void Heads::backward(int64_t h, const float* M, const Solved& solved, float* D,
                     const RecurrenceGradients& g) {
  prefetch_tile(g.dout, h, x_.shape.dv);
  restore(h, solved);
  take_dout(h, g.dout);
  written_gradient(D);
  if (delta()) solve_back(g, h);
  pair_gradients();
  key_gradients(M);
  if (g.dlog_decay) gates(h, M, D, g);
  store(h, g);
  advance_gradient(D);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
