#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {
namespace {

// Below it beta counts as this: the gradient of beta is divided by beta.
constexpr float kLeastBeta = 1e-18f;

}  // namespace

Heads::Heads(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<float>& memory)
    : x_(x),
      ops_(row_ops<float>()),
      decays_(x, memory),
      dk_(padded(x.shape.dk)),
      max_dv_(padded(cols)),
      backward_(backward) {
  const int64_t keys = kTile * dk_, values = kTile * max_dv_, state = dk_ * max_dv_;
  // Rows of a segment of a tile, rounded up, may end this far behind it.
  constexpr int64_t kPairsSize = (kTile + kBlock) * kPairs;
  const auto halves = [&](std::initializer_list<bf16**> all, int64_t count) {
    for (bf16** to : all) *to = reinterpret_cast<bf16*>(memory.take(count / 2));
  };
  const auto floats = [&](std::initializer_list<float**> all, int64_t count) {
    for (float** to : all) *to = memory.take(count);
  };
  halves({&q_, &k_, &kt_panels_, &kt_rows_, &q_in_, &k_in_, &k_out_, &keys_tmp_}, keys);
  halves({&p_, &s_}, kPairsSize);
  floats({&qk_, &kk_, &l_}, kPairsSize);
  halves({&m_, &m_panels_}, state);
  halves({&v_, &w_rows_, &w_panels_, &w_out_panels_, &tmp_, &tmp_panels_}, values);
  floats({&w_, &att_}, values);
  const auto if_backward = [&](int64_t count) { return backward ? count : 0; };
  halves({&q_panels_, &k_panels_, &qt_rows_, &x_later_}, if_backward(keys));
  halves({&pt_, &st_, &tmp_pairs_, &dp_, &dl_, &dpt_, &dlt_}, if_backward(kPairsSize));
  halves({&d_panels_, &dt_panels_, &mt_panels_}, if_backward(state));
  halves({&wt_panels_, &do_, &do_in_, &do_panels_, &do_in_panels_, &du_, &du_in_, &du_in_panels_,
          &w_out_},
         if_backward(values));
  floats({&dw_}, if_backward(values));
  floats({&dq_sum_, &dk_sum_, &dq_, &dk_read_, &dk_pairs_, &dk_state_, &product_},
         if_backward(keys));
  floats({&gates_}, if_backward(2 * keys + dk_));
}

void Heads::begin_group(int64_t j, const ValueColumns& columns) {
  j_ = j;
  columns_ = columns;
  dv_ = padded(columns.cols);
  ASHLAR_ASSERT(dv_ <= max_dv_);
}

// The tile that comes next is read from far away: its rows lie in as many pages.  Backward walks
// back, but first runs the states of a block forward.
void Heads::prefetch_tile(const Matrix& m, int64_t head, int64_t width) const {
  const bool back = backward_ && reads_;
  const int64_t begin = back ? std::max<int64_t>(0, tile_.begin - kTile) : tile_.end,
                end = back ? tile_.begin : std::min(m.rows, tile_.end + kTile);
  prefetch(m.columns(head * width, (head + 1) * width).row_range(begin, end));
}

void Heads::begin(const Tile& tile, bool reads) {
  tile_ = tile;
  n_ = tile.size();
  rows_ = round_up(n_, kBlock);
  reads_ = reads;
  const int64_t dk = x_.shape.dk;
  prefetch_tile(x_.k, j_, dk);
  to_rows(rows_of(x_.k, j_, dk), 1, nullptr, rows_, dk_, k_);
  if (reads) {
    prefetch_tile(x_.q, j_, dk);
    to_rows(rows_of(x_.q, j_, dk), 1, nullptr, rows_, dk_, q_);
  }
  if (decays_.channels()) return;
  bf16* panels = backward_ ? k_panels_ : keys_tmp_;
  to_panels(k_, rows_, dk_, rows_, panels);
  to_transposed_rows(panels, rows_, dk_, kt_rows_, kPairs);
  to_transposed_panels(k_, dk_, rows_, dk_, kt_panels_);
  if (reads)
    multiply(rows_, rows_, {{q_, dk_, kt_panels_, dk_, dk_}}, qk_, kPairs, Sums::kSet,
             Blocks::kLower);
  if (delta())
    multiply(rows_, rows_, {{k_, dk_, kt_panels_, dk_, dk_}}, kk_, kPairs, Sums::kSet,
             Blocks::kLower);
  if (!reads || !backward_) return;
  to_panels(q_, rows_, dk_, rows_, q_panels_);
  to_transposed_rows(q_panels_, rows_, dk_, qt_rows_, kPairs);
}

// Makes the decays of a head, and its own forms of queries and keys.
void Heads::begin_head(int64_t h) {
  decays_.begin(h, tile_);
  if (delta()) {
    const Cells<float> beta(x_.beta_TH);
    for (int64_t i = 0; i < n_; ++i)
      beta_[i] = std::max(kLeastBeta, beta[(tile_.begin + i) * x_.shape.H + h]);
  }
  if (decays_.channels()) {
    segment_pairs();
    if (reads_) to_rows_by(keys(q_), decays_.in(), rows_, dk_, q_in_);
    if (delta()) to_rows_by(keys(k_), decays_.in(), rows_, dk_, k_in_);
    to_rows_by(keys(k_), decays_.out(), rows_, dk_, k_out_);
    if (reads_ && backward_) return;
    to_panels(k_out_, rows_, dk_, rows_, keys_tmp_);
    to_transposed_rows(keys_tmp_, rows_, dk_, kt_rows_, kPairs);
  } else if (reads_) {
    to_rows(keys(q_), 1, decays_.in(), rows_, dk_, q_in_);
  }
}

void Heads::segment_pairs() {
  for_segments([&](int64_t first, int64_t end, int64_t rows) {
    const int64_t depth = round_up(end, kBlock);
    const auto part = [&](const bf16* x) { return keys(x).row_range(first, end); };
    to_rows_by(keys(k_).row_range(0, end), decays_.earlier(), depth, dk_, keys_tmp_);
    to_transposed_panels(keys_tmp_, dk_, depth, dk_, kt_panels_);
    const auto pairs = [&](const bf16* x, float* to) {
      to_rows_by(part(x), decays_.later(first), rows, dk_, keys_tmp_);
      multiply(rows, depth, {{keys_tmp_, dk_, kt_panels_, dk_, dk_}}, to + first * kPairs, kPairs);
    };
    if (reads_) pairs(q_, qk_);
    if (delta()) pairs(k_, kk_);
  });
}

// Panels of fp32 rows, times factors.
void Heads::panels_of(const float* rows, int64_t num, const float* factors, bf16* to,
                      int64_t depth) {
  to_rows(values(rows, num), 1, factors, num, dv_, tmp_);
  to_panels(tmp_, num, dv_, depth, to);
}

// x becomes W, and w_panels_ its panels.
void Heads::solve(float* x) {
  for (int64_t first = 0; first < rows_; first += kBlock) {
    float* own = x + first * dv_;
    const bf16* s = s_ + first * kPairs;
    if (first > 0)
      multiply(kBlock, dv_, {{s, kPairs, w_panels_, rows_, first}}, own, dv_, Sums::kAdd);
    panels_of(own, kBlock, nullptr, tmp_panels_, kBlock);
    multiply(kBlock, dv_, {{s + first, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_, Sums::kAdd);
    panels_of(own, kBlock, nullptr, w_panels_ + first * kBlock, rows_);
  }
}

// Fills w_rows_, w_panels_ and w_out_panels_.
void Heads::write(int64_t h, const Solved& solved) {
  const float* out = decays_.none() || decays_.channels() ? nullptr : decays_.out();
  if (!delta()) {
    to_rows(values_of(x_.v, h), 1, nullptr, rows_, dv_, w_rows_);
    to_panels(w_rows_, rows_, dv_, rows_, w_panels_);
    if (out) {
      to_rows({as_bytes(w_rows_), DType::kBF16, n_, dv_, dv_}, 1, out, rows_, dv_, tmp_);
      to_panels(tmp_, rows_, dv_, rows_, w_out_panels_);
    }
    return;
  }
  to_rows(values_of(x_.v, h), 1, nullptr, rows_, dv_, v_);
  keep_earlier(decays_.pairs(n_, rows_), kk_, beta_, l_);
  invert_blocks(l_, rows_, s_);
  const bool channels = decays_.channels();
  if (has_state())
    multiply(rows_, dv_, {{channels ? k_in_ : k_, dk_, m_panels_, dk_, dk_}}, w_, dv_);
  amx::write({v_, beta_, channels ? nullptr : decays_.in(), n_, rows_, dv_}, has_state(), w_);
  solve(w_);
  if (out) panels_of(w_, rows_, out, w_out_panels_, rows_);
  if (!solved.w) return;
  to_rows(values(w_, n_), 1, nullptr, n_, dv_, solved.w);
  std::copy_n(s_, n_ * kPairs, solved.s);
}

void Heads::forward(int64_t h, float* M, const Matrix& out, const Solved& solved) {
  prefetch_tile(x_.v, h, x_.shape.dv);
  begin_head(h);
  if (has_state()) {
    pass_state(M, decays_.whole(), dk_, dv_, m_);
    to_panels(m_, dk_, dv_, dk_, m_panels_);
  }
  write(h, solved);
  if (out.data) {
    keep_pairs(decays_.pairs(n_, rows_), qk_, p_);
    const Term pairs{p_, kPairs, w_panels_, rows_, rows_, Zeros::kAbove},
        state{q_in_, dk_, m_panels_, dk_, has_state() ? dk_ : 0};
    multiply(rows_, dv_, {pairs, state}, att_, dv_);
    const Matrix to = values_of(out, h);
    ops_.stream(view(att_, n_, columns_.values, dv_), float(x_.shape.scale),
                reinterpret_cast<float*>(to.data), to.stride);
  }
  const bool scaled = !decays_.none() && !decays_.channels();
  multiply(dk_, dv_, {{kt_rows_, kPairs, scaled ? w_out_panels_ : w_panels_, rows_, rows_}}, M, dv_,
           has_state() ? Sums::kAdd : Sums::kSet);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
