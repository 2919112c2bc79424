// Gates of channels in a cut tile: pairs are products segment by segment, relative to the segment's
// first token s, or in the first segment to what is before the tile:
//
//   x_i . k_j e^(c_i - c_j) = (x_i e^(c_i - c_s)) . (k_j e^(c_s - c_j))        j <= i, s <= i
#include "ashlar/kernels/cpu/recurrence/amx_heads.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

// body(first, end, rows) for the segments of the tile, whose factors are made; `rows` covers it.
template <typename Body>
void Heads::for_segments(Body body) {
  for (int64_t first = 0, end; first < n_; first = end) {
    end = decays_.segment(first);
    body(first, end, round_up(end - first, kBlock));
  }
}

// Fills l_ with the pairs of queries, and kk_.
void Heads::segment_pairs() {
  for_segments([&](int64_t first, int64_t end, int64_t rows) {
    const int64_t depth = round_up(end, kBlock);
    to_rows_by(keys(k_rows_).row_range(0, end), decays_.earlier(), depth, dk_, keys_tmp_);
    to_transposed_panels(keys_tmp_, depth, dk_, kt_panels_);
    const auto pairs = [&](const bf16* x, float* to) {
      to_rows_by(keys(x).row_range(first, end), decays_.later(first), rows, dk_, keys_tmp_);
      multiply(rows, depth, {{keys_tmp_, dk_, kt_panels_, dk_, dk_}}, to + first * kPairs, kPairs);
    };
    if (reads_) pairs(q_rows_, l_);
    if (delta()) pairs(k_rows_, kk_);
  });
}

// Adds the part through pairs to the sums, and stores that of queries in dq, unless null.  The
// gradient of a gate comes from the rounded factors that both products read, so that a pair's two
// parts cancel where the gate does not lie between its tokens.
void Heads::segment_gradients(const Matrix* dq) {
  if (!dk_adds_) std::fill_n(dk_sum_, rows_ * dk_, 0.0f);
  dk_adds_ = true;
  for (bf16* pairs : {dpt_, dlt_}) std::fill_n(pairs + kTile * kPairs, kPairs, bf16());
  for_segments([&](int64_t first, int64_t end, int64_t rows) {
    const int64_t depth = round_up(end, kBlock);
    const auto reader = [&](const bf16* x, const bf16* dp, const bf16* dpt, float* dx) {
      to_rows_by(keys(k_rows_).row_range(0, end), decays_.earlier(), depth, dk_, keys_tmp_);
      to_panels(keys(keys_tmp_).row_range(0, end), 1, nullptr, depth, dk_, depth, k_panels_);
      to_rows_by(keys(x).row_range(first, end), decays_.later(first), rows, dk_, x_later_);
      multiply(rows, dk_, {{dp + first * kPairs, kPairs, k_panels_, depth, depth}}, product_, dk_);
      add_by(product_, decays_.later(first), end - first, dk_, dx + first * dk_);
      add_products(x_later_, product_, end - first, dk_, 1, gates_ + first * dk_);
      to_panels(keys(x_later_).row_range(0, end - first), 1, nullptr, rows, dk_, rows, q_panels_);
      multiply(depth, dk_, {{dpt + first, kPairs, q_panels_, rows, rows}}, product_, dk_);
      add_by(product_, decays_.earlier(), end, dk_, dk_sum_);
      add_products(keys_tmp_, product_, end, dk_, -1, gates_);
    };
    reader(q_rows_, dp_, dpt_, dq_sum_);
    if (delta()) reader(k_rows_, dl_, dlt_, dk_sum_);
  });
  if (dq) store_rows(dq_sum_, dk_, nullptr, *dq);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
