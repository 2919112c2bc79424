#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {
namespace {

// Below it beta counts as this: the gradient of beta is divided by beta.
constexpr float kLeastBeta = 1e-18f;

bool same(const Tile& a, const Tile& b) {
  return a.begin == b.begin && a.end == b.end;
}

}  // namespace

Heads::Heads(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<float>& memory)
    : x_(x),
      ops_(row_ops<float>()),
      decays_(x, memory),
      dk_(padded(x.shape.dk)),
      max_dv_(padded(cols)),
      backward_(backward) {
  const int64_t keys = kTile * dk_, values = kTile * max_dv_, state = dk_ * max_dv_,
                pairs = kTile * kPairs;
  const auto halves = [&](std::initializer_list<bf16**> all, int64_t count) {
    for (bf16** to : all) *to = reinterpret_cast<bf16*>(memory.take(count / 2));
  };
  const auto floats = [&](std::initializer_list<float**> all, int64_t count) {
    for (float** to : all) *to = memory.take(count);
  };
  halves({&q_rows_, &k_rows_, &q_in_, &k_in_, &k_out_, &kt_panels_, &kt_, &k_panels_}, keys);
  halves({&p_, &s_}, pairs);
  floats({&kk_, &l_}, pairs);
  halves({&m_panels_}, state);
  halves({&v_, &w_, &w_panels_, &tmp_panels_}, values);
  floats({&x_rows_}, values);
  const auto if_backward = [&](int64_t count) { return backward ? count : 0; };
  halves({&q_panels_, &k_read_panels_, &qt_, &k_read_t_}, if_backward(keys));
  halves({&pt_, &st_, &dp_, &dl_, &dpt_, &dlt_, &pairs_panels_}, if_backward(pairs));
  halves({&m_, &d_panels_, &dt_panels_, &mt_panels_}, if_backward(state));
  halves({&wt_panels_, &do_, &do_panels_, &du_, &du_panels_}, if_backward(values));
  floats({&dw_}, if_backward(values));
  floats({&dq_sum_, &dk_sum_, &dq_, &dk_read_, &dk_pairs_, &dk_state_}, if_backward(keys));
  floats({&gates_}, if_backward(2 * keys + dk_));
  floats({&saved_}, if_backward(state));
}

void Heads::begin_group(int64_t j, const ValueColumns& columns) {
  j_ = j;
  columns_ = columns;
  dv_ = padded(columns.cols);
  packed_ = {};
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
  reads_ = reads;
  adds_ = false;
  prefetch_tile(x_.k, j_, x_.shape.dk);
  if (reads) prefetch_tile(x_.q, j_, x_.shape.dk);
  pack(tile);
}

void Heads::pack(const Tile& part) {
  part_ = packed_ = part;
  n_ = part.size();
  rows_ = round_up(n_, kBlock);
  const int64_t dk = x_.shape.dk;
  to_rows(rows_of(x_.k, j_, dk), 1, nullptr, rows_, dk_, k_rows_);
  if (reads_) to_rows(rows_of(x_.q, j_, dk), 1, nullptr, rows_, dk_, q_rows_);
  if (!decays_.channels()) pack_products(q_rows_, k_rows_, k_rows_);
}

// Forms and pairs of the rows that products read: q, the keys that read, and those that write.
void Heads::pack_products(const bf16* q, const bf16* k_read, const bf16* k) {
  q_ = q;
  k_read_ = k_read;
  k_ = k;
  to_panels(keys(k), 1, nullptr, rows_, dk_, rows_, k_panels_);
  to_transposed_rows(k_panels_, rows_, dk_, kt_);
  if (reads_ || delta()) to_transposed_panels(k, rows_, dk_, kt_panels_);
  const auto pairs = [&](const bf16* from, float* to) {
    multiply(rows_, rows_, {{from, dk_, kt_panels_, dk_, dk_}}, to, kPairs, Sums::kSet,
             Blocks::kLower);
  };
  if (delta()) pairs(k_read, kk_);
  if (!reads_) return;
  pairs(q, l_);
  keep_pairs(l_, false, n_, rows_, p_);
  if (!backward_) return;
  transpose_pairs(p_, pt_);
  to_panels(keys(q), 1, nullptr, rows_, dk_, rows_, q_panels_);
  to_transposed_rows(q_panels_, rows_, dk_, qt_);
  if (!delta() || k_read == k) return;
  to_panels(keys(k_read), 1, nullptr, rows_, dk_, rows_, k_read_panels_);
  to_transposed_rows(k_read_panels_, rows_, dk_, k_read_t_);
}

void Heads::transpose_pairs(const bf16* x, bf16* to) {
  to_panels({as_bytes(x), DType::kBF16, rows_, kPairs, kPairs}, 1, nullptr, rows_, kPairs, rows_,
            pairs_panels_);
  to_transposed_rows(pairs_panels_, rows_, kPairs, to);
}

void Heads::begin_part(int64_t h, int64_t t) {
  const Tile part = decays_.begin(h, {t, tile_.end, tile_.starts && t == tile_.begin});
  if (!same(part, packed_)) pack(part);
  part_.starts = part.starts;
  if (delta()) {
    const Cells<float> beta(x_.beta_TH);
    for (int64_t i = 0; i < n_; ++i)
      beta_[i] = std::max(kLeastBeta, beta[(part_.begin + i) * x_.shape.H + h]);
  }
  const auto scale = float(x_.shape.scale);
  for (int64_t i = 0; i < n_; ++i) factors_[i] = decays_.rows() ? scale * decays_.in()[i] : scale;
  if (!decays_.channels()) return;
  if (reads_) to_rows_by(keys(q_rows_), decays_.in(), rows_, dk_, q_in_);
  if (delta()) to_rows_by(keys(k_rows_), decays_.in(), rows_, dk_, k_in_);
  to_rows_by(keys(k_rows_), decays_.inverse(), rows_, dk_, k_out_);
  pack_products(q_in_, k_in_, k_out_);
}

// Panels of fp32 rows.
void Heads::panels_of(const float* rows, int64_t num, bf16* to, int64_t depth) {
  to_panels(values(rows, num), 1, nullptr, num, dv_, depth, to);
}

// x becomes W', and w_panels_ its panels.
void Heads::solve(float* x) {
  for (int64_t first = 0; first < rows_; first += kBlock) {
    float* own = x + first * dv_;
    const bf16* s = s_ + first * kPairs;
    if (first > 0)
      multiply(kBlock, dv_, {{s, kPairs, w_panels_, rows_, first}}, own, dv_, Sums::kAdd);
    panels_of(own, kBlock, tmp_panels_, kBlock);
    multiply(kBlock, dv_, {{s + first, kPairs, tmp_panels_, kBlock, kBlock}}, own, dv_, Sums::kAdd);
    panels_of(own, kBlock, w_panels_ + first * kBlock, rows_);
  }
}

// Fills w_panels_.
void Heads::write(int64_t h, const float* M, const Solved& solved) {
  const Matrix v = values_of(x_.v, h);
  const float* factors = if_rows(decays_.inverse());
  if (has_state() && (reads_ || delta()))
    to_panels(values(M, dk_), 1, nullptr, dk_, dv_, dk_, m_panels_);
  if (!delta()) return to_panels(v, 1, factors, rows_, dv_, rows_, w_panels_);
  to_rows(v, 1, nullptr, rows_, dv_, v_);
  keep_earlier(kk_, beta_, n_, rows_, l_);
  invert_blocks(l_, rows_, s_);
  if (has_state()) multiply(rows_, dv_, {{k_read_, dk_, m_panels_, dk_, dk_}}, x_rows_, dv_);
  amx::write({v_, beta_, factors, n_, rows_, dv_}, has_state(), x_rows_);
  solve(x_rows_);
  if (!solved.w) return;
  to_rows(values(x_rows_, n_), 1, nullptr, n_, dv_, solved.w);
  std::copy_n(s_, n_ * kPairs, solved.s);
}

void Heads::forward_part(int64_t h, float* M, const Matrix& out, const Solved& solved) {
  if (has_state()) decays_.drop(M, dv_);
  write(h, M, solved);
  alignas(64) float block[kBlock * kBlock];
  if (out.data) {
    const Term pairs{p_, kPairs, w_panels_, rows_, rows_, Zeros::kAbove},
        state{q_, dk_, m_panels_, dk_, has_state() ? dk_ : 0};
    const Matrix to = values_of(out, h);
    for (int64_t c = 0; c < to.cols; c += kBlock)
      for (int64_t i = 0; i < n_; i += kBlock) {
        block_of(i, c, {pairs, state}, block);
        store_rows(
            block, kBlock, factors_ + i,
            to.row_range(i, std::min(n_, i + kBlock)).columns(c, std::min(to.cols, c + kBlock)));
      }
  }
  for (int64_t c = 0; c < dv_; c += kBlock)
    for (int64_t i = 0; i < dk_; i += kBlock) {
      block_of(i, c, {{kt_, kPairs, w_panels_, rows_, rows_}}, block);
      add_to_state(block, decays_.whole() + i, has_state(), dv_, M + i * dv_ + c);
    }
}

void Heads::forward(int64_t h, float* M, const Matrix& out, const Solved& solved) {
  prefetch_tile(x_.v, h, x_.shape.dv);
  for (int64_t t = tile_.begin; t < tile_.end; t = part_.end) {
    begin_part(h, t);
    const int64_t row = t - tile_.begin;
    forward_part(h, M, out, solved.from(row, dv_));
  }
}

}  // namespace ashlar::kernels::cpu::amx
#endif
