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
  const int64_t keys = kTile * dk_, values = kTile * max_dv_, state = dk_ * max_dv_,
                // Rows of a segment of a tile, rounded up, may end this far behind it.
      pairs = (kTile + kBlock) * kPairs;
  const auto halves = [&](std::initializer_list<bf16**> all, int64_t count) {
    for (bf16** to : all) *to = reinterpret_cast<bf16*>(memory.take(count / 2));
  };
  const auto floats = [&](std::initializer_list<float**> all, int64_t count) {
    for (float** to : all) *to = memory.take(count);
  };
  halves({&q_rows_, &k_rows_, &q_in_, &k_in_, &k_out_, &kt_panels_, &kt_, &k_panels_, &keys_tmp_,
          &kt_cut_},
         keys);
  halves({&p_, &p_cut_, &s_}, pairs);
  floats({&kk_, &l_}, pairs);
  halves({&m_panels_}, group() * state);
  halves({&w_panels_}, values);
  halves({&x_panels_}, kBlock * max_dv_);
  floats({&x_rows_}, kBlock * max_dv_);
  const auto if_backward = [&](int64_t count) { return backward ? count : 0; };
  halves({&q_panels_, &k_read_panels_, &qt_, &kt_read_, &qt_cut_, &x_later_}, if_backward(keys));
  halves({&pt_, &pt_cut_, &st_rows_, &dp_, &dl_, &dpt_, &dlt_, &pairs_panels_}, if_backward(pairs));
  halves({&m_, &d_panels_, &dt_panels_, &mt_panels_}, if_backward(state));
  halves({&w_rows_, &wt_panels_, &do_, &do_panels_, &du_, &du_panels_}, if_backward(values));
  halves({&r_panels_}, if_backward(kBlock * max_dv_));
  floats({&dq_sum_, &dk_sum_, &product_}, if_backward(keys));
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
  dq_adds_ = dk_adds_ = false;
  const int64_t dk = x_.shape.dk;
  prefetch_tile(x_.k, j_, dk);
  to_rows(rows_of(x_.k, j_, dk), 1, nullptr, rows_, dk_, k_rows_);
  if (reads) {
    prefetch_tile(x_.q, j_, dk);
    to_rows(rows_of(x_.q, j_, dk), 1, nullptr, rows_, dk_, q_rows_);
  }
  if (!decays_.channels()) pack_products(q_rows_, k_rows_, k_rows_);
}

void Heads::transpose_keys(const bf16* rows, bf16* to) {
  to_panels(keys(rows), 1, nullptr, rows_, dk_, rows_, keys_tmp_);
  to_transposed_rows(keys_tmp_, rows_, dk_, to);
}

void Heads::pack_products(const bf16* q, const bf16* k_read, const bf16* k) {
  q_ = q;
  k_read_ = k_read;
  k_ = k;
  to_panels(keys(k), 1, nullptr, rows_, dk_, rows_, k_panels_);
  to_transposed_rows(k_panels_, rows_, dk_, kt_);
  if (reads_ || delta()) to_transposed_panels(k, rows_, dk_, kt_panels_);
  if (delta())
    multiply(rows_, rows_, {{k_read, dk_, kt_panels_, dk_, dk_}}, kk_, kPairs, Sums::kSet,
             Blocks::kLower);
  if (!reads_) return;
  keep_product({q, dk_, kt_panels_, dk_, dk_}, false, p_, backward_ ? pt_ : nullptr);
  if (!backward_) return;
  to_panels(keys(q), 1, nullptr, rows_, dk_, rows_, q_panels_);
  to_transposed_rows(q_panels_, rows_, dk_, qt_);
  if (!delta() || k_read == k) return;
  to_panels(keys(k_read), 1, nullptr, rows_, dk_, rows_, k_read_panels_);
  to_transposed_rows(k_read_panels_, rows_, dk_, kt_read_);
}

void Heads::keep_product(const Term& term, bool strict, bf16* to, bf16* transposed) {
  for_blocks(
      rows_, rows_, Blocks::kLower,
      [&](int64_t i, int64_t c, float* block) { block_of(i, c, {term}, block); },
      [&](int64_t i, int64_t c, const float* block) {
        keep_block(block, n_ - i, i == c, strict, to + i * kPairs + c,
                   transposed ? transposed + c * kPairs + i : nullptr);
      });
}

void Heads::transpose_pairs(const bf16* x, bf16* to) {
  to_panels({as_bytes(x), DType::kBF16, rows_, kPairs, kPairs}, 1, nullptr, rows_, kPairs, rows_,
            pairs_panels_);
  to_transposed_rows(pairs_panels_, rows_, kPairs, to);
}

void Heads::begin_head(int64_t h) {
  decays_.begin(h, tile_);
  cut_ = decays_.cut();
  if (delta()) {
    const Cells<float> beta(x_.beta_TH);
    for (int64_t i = 0; i < n_; ++i)
      beta_[i] = std::max(kLeastBeta, beta[(tile_.begin + i) * x_.shape.H + h]);
    std::fill(beta_ + n_, beta_ + kTile, 0.0f);
  }
  const auto scale = float(x_.shape.scale);
  for (int64_t i = 0; i < n_; ++i) factors_[i] = decays_.rows() ? scale * decays_.in()[i] : scale;
  if (cut_) return cut_head();
  if (decays_.channels()) {
    if (reads_) scale_keys(q_rows_, decays_.in(), q_in_);
    if (delta()) scale_keys(k_rows_, decays_.in(), k_in_);
    scale_keys(k_rows_, decays_.inverse(), k_out_);
    pack_products(q_in_, k_in_, k_out_);
  }
  q_state_ = q_;
  k_state_ = k_read_;
  k_made_ = k_;
  qt_state_ = qt_;
  kt_state_ = k_read_ == k_ ? kt_ : kt_read_;
  kt_made_ = kt_;
  pairs_ = p_;
  pairs_t_ = pt_;
}

void Heads::scale_keys(const bf16* x, const float* factors, bf16* to) {
  decays_.channels() ? to_rows_by(keys(x), factors, rows_, dk_, to)
                     : to_rows(keys(x), 1, factors, rows_, dk_, to);
}

// The forms of a head whose tile is cut.
void Heads::cut_head() {
  q_ = q_rows_;
  k_ = k_read_ = k_rows_;
  if (reads_) scale_keys(q_rows_, decays_.from_state(), q_in_);
  if (delta()) scale_keys(k_rows_, decays_.from_state(), k_in_);
  scale_keys(k_rows_, decays_.to_end(), k_out_);
  q_state_ = q_in_;
  k_state_ = k_in_;
  k_made_ = k_out_;
  const bool walks_back = reads_ && backward_;
  if (!walks_back) transpose_keys(k_out_, kt_cut_);
  kt_made_ = kt_cut_;
  if (walks_back) transpose_keys(q_in_, qt_cut_);
  if (walks_back && delta()) transpose_keys(k_in_, kt_cut_);
  qt_state_ = qt_cut_;
  kt_state_ = kt_cut_;
  if (decays_.channels()) segment_pairs();
  if (!reads_) return;
  if (decays_.channels())
    keep_pairs({nullptr, n_, rows_}, l_, false, p_cut_);
  else
    keep_pairs({decays_.between(), n_, rows_}, p_, p_cut_);
  pairs_ = p_cut_;
  if (backward_) transpose_pairs(p_cut_, pt_cut_);
  pairs_t_ = pt_cut_;
}

// W' from the values and, where there is a state, from what keys read of it; fills w_panels_.
void Heads::solve(const Matrix& v, const bf16* read, const Solved& solved) {
  const float* factors = if_rows(decays_.inverse());
  alignas(64) Block before;
  for (int64_t first = 0; first < rows_; first += kBlock) {
    const bf16* s = s_ + first * kPairs;
    for_blocks(
        kBlock, dv_, Blocks::kAll,
        [&](int64_t, int64_t c, float* block) {
          if (read) block_of(first, c, {{k_state_, dk_, read, dk_, dk_}}, block);
          if (first > 0) block_of(0, c, {{s, kPairs, w_panels_, rows_, first}}, before);
        },
        [&](int64_t, int64_t c, const float* block) {
          ask_block({part(v, first, c), beta_ + first, factors ? factors + first : nullptr,
                     read ? block : nullptr, dv_},
                    first > 0 ? before : nullptr, x_rows_ + c, in_panels(x_panels_, kBlock, 0, c));
        });
    for_blocks(
        kBlock, dv_, Blocks::kAll,
        [&](int64_t, int64_t c, float* block) {
          block_of(0, c, {{s + first, kPairs, x_panels_, kBlock, kBlock}}, block);
        },
        [&](int64_t, int64_t c, const float* block) {
          write_block(block, x_rows_ + c, dv_, in_panels(w_panels_, rows_, first, c),
                      solved.w ? solved.w + first * dv_ + c : nullptr, n_ - first);
        });
  }
}

void Heads::write(int64_t h, const Solved& solved) {
  const Matrix v = values_of(x_.v, h);
  if (!delta()) return to_panels(v, 1, if_rows(decays_.inverse()), rows_, dv_, rows_, w_panels_);
  keep_earlier({decays_.between(), n_, rows_}, kk_, beta_, l_);
  invert_blocks(l_, rows_, s_);
  solve(v, has_state() ? state_panels(h) : nullptr, solved);
  if (!solved.st) return;
  bf16* st = n_ == rows_ ? solved.st : st_rows_;
  transpose_pairs(s_, st);
  if (st != solved.st) std::copy_n(st, n_ * kPairs, solved.st);
}

void Heads::begin_state(int64_t h, const float* M) {
  to_panels(values(M, dk_), 1, nullptr, dk_, dv_, dk_, state_panels(h));
}

void Heads::forward(int64_t h, const float* from, float* to, const Matrix& out,
                    const Solved& solved) {
  prefetch_tile(x_.v, h, x_.shape.dv);
  begin_head(h);
  const bool panels = reads_ || delta();
  if (has_state() && decays_.faint()) {
    if (from != to) std::copy_n(from, state_size(), to);
    from = to;
    decays_.pass_first(to, dv_);
    if (panels) begin_state(h, to);
  }
  write(h, solved);
  if (out.data) {
    const Term pairs{pairs_, kPairs, w_panels_, rows_, rows_, Zeros::kAbove},
        state{q_state_, dk_, state_panels(h), dk_, has_state() ? dk_ : 0};
    const Matrix to_out = values_of(out, h);
    for_blocks(
        n_, to_out.cols, Blocks::kAll,
        [&](int64_t i, int64_t c, float* block) {
          block_of(i, c, {pairs, state}, block);
        },
        [&](int64_t i, int64_t c, const float* block) {
          store_rows(block, kBlock, factors_ + i, part(to_out, i, c));
        });
  }
  for_blocks(
      dk_, dv_, Blocks::kAll,
      [&](int64_t i, int64_t c, float* block) {
        block_of(i, c, {{kt_made_, kPairs, w_panels_, rows_, rows_}}, block);
      },
      [&](int64_t i, int64_t c, const float* block) {
        store_state(block,
                    {decays_.passed() + i, decays_.made() + i,
                     has_state() ? from + i * dv_ + c : nullptr, dv_},
                    to + i * dv_ + c, panels ? in_panels(state_panels(h), dk_, i, c) : nullptr);
      });
}

}  // namespace ashlar::kernels::cpu::amx
#endif
