// The value heads of one key head, tile by tile, with products on AMX: the formulas of
// head_tiles.h, with decays as in amx_decay.h.
//
// How it works.  Operands are kept in bf16 in the forms that the products read, each made once.
// Queries, keys and their pairs belong to the key head, unless gates of channels are inside them or
// the tile is cut; what is written (W') and the state belong to the value head.
//
// The delta rule solves (I + A) W' = X, where X = beta (V' - K M) and A_ij = beta_i k_i . k_j below
// the diagonal, in two blocks of 32 tokens, with N = (I + A_bb)^-1 - I of both diagonal blocks
// inverted in fp32:
//
//   W_0 = X_0 + N_0 X_0       X_1 -= A_10 W_0       W_1 = X_1 + N_1 X_1
//
// so that bf16 rounds only what tokens of a block do to each other.  The transpose of
// S = [N_0 0; -A_10 N_1] and W' are handed to backward, which runs the steps in reverse.
//
// Blocks of products are used as they leave the tiles (amx_blocks.h).
//
// The gradient of a gate takes the products of rounded numbers that the gradients of q and k are
// made from, so that pairs on one side of the gate cancel.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_blocks.h"
#include "ashlar/kernels/cpu/recurrence/amx_decay.h"
#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu::amx {

// Rows that a run of the states leaves for backward, of one value head.
struct Solved {
  bf16* w;   // [tokens, padded(dv)]
  bf16* st;  // [tokens, kPairs], transposed
};

class Heads {
 public:
  // Memory for states of at most `cols` columns, and for backward.
  Heads(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<float>& memory);

  void begin_group(int64_t j, const ValueColumns& columns);
  int64_t state_size() const { return dk_ * dv_; }  // [dk, dv], both padded

  // The tile's queries and keys.  reads: queries count.
  void begin(const Tile& tile, bool reads);
  // Makes what readers see of the state M, which forward goes on from.
  void begin_state(int64_t h, const float* M);
  // `to`, which may be `from`, becomes the state after the tile; `out`, if it has data, is filled,
  // as is `solved` with the delta rule, if it has data.
  void forward(int64_t h, const float* from, float* to, const Matrix& out, const Solved& solved);
  // M is the state before the tile, and is used up; D becomes the gradient of it.  The gradients of
  // queries and keys are stored with the last head of the group.
  void backward(int64_t h, float* M, const Solved& solved, float* D, const RecurrenceGradients& g);

 private:
  Matrix rows_of(const Matrix& m, int64_t head, int64_t width) const {
    return m.columns(head * width, (head + 1) * width).row_range(tile_.begin, tile_.end);
  }
  Matrix values_of(const Matrix& m, int64_t h) const {
    return rows_of(m, h, x_.shape.dv).columns(columns_.first, columns_.first + columns_.values);
  }
  Matrix keys(const bf16* x) const { return {as_bytes(x), DType::kBF16, n_, dk_, dk_}; }
  Matrix values(const float* x, int64_t rows) const { return view(x, rows, dv_, dv_); }
  static std::byte* as_bytes(const bf16* x) {
    return reinterpret_cast<std::byte*>(const_cast<bf16*>(x));
  }
  bool delta() const { return x_.has_beta(); }
  bool gated() const { return x_.decay == Decay::kToken || x_.decay == Decay::kChannel; }
  bool has_state() const { return !tile_.starts; }
  bool is_last(int64_t h) const { return (h + 1) % group() == 0; }
  int64_t group() const { return x_.shape.H / x_.shape.K; }
  bf16* state_panels(int64_t h) const { return m_panels_ + h % group() * dk_ * max_dv_; }
  // The place of a row and column of blocks in panels of `depth` rows.
  static bf16* in_panels(bf16* panels, int64_t depth, int64_t row, int64_t col) {
    return panels + col * depth + row * kBlock;
  }
  // The part of m that a block at (row, col) has.
  static Matrix part(const Matrix& m, int64_t row, int64_t col) {
    return m.row_range(std::min(m.rows, row), std::min(m.rows, row + kBlock))
        .columns(std::min(m.cols, col), std::min(m.cols, col + kBlock));
  }
  const float* if_rows(const float* factors) const { return decays_.rows() ? factors : nullptr; }

  void prefetch_tile(const Matrix& m, int64_t head, int64_t width) const;
  // Forms and pairs of q, of the keys that the delta rule reads by, and of those that write.
  void pack_products(const bf16* q, const bf16* k_read, const bf16* k);
  // The factors and forms of the head.
  void begin_head(int64_t h);
  void cut_head();
  void scale_keys(const bf16* keys, const float* factors, bf16* to);
  void transpose_keys(const bf16* rows, bf16* to);
  void transpose_pairs(const bf16* x, bf16* to);
  // Pairs of rows x with those in panels, masked, and their transpose, unless null.
  void keep_product(const Term& term, bool strict, bf16* to, bf16* transposed);
  void write(int64_t h, const Solved& solved);
  void solve(const Matrix& v, const bf16* read, const Solved& solved);

  void take_dout(int64_t h, const Solved& solved, float* D, const RecurrenceGradients& g);
  void written_gradient(int64_t h, const RecurrenceGradients& g);
  void solve_back(const Term& pairs, const Term& state, int64_t h, const RecurrenceGradients& g);
  void pair_gradients();
  void key_gradients(int64_t h, const float* M, const RecurrenceGradients& g);
  // Adds the sum of the terms to `sum`, or sets it; the last time stores it in `to`, unless null.
  void take(std::initializer_list<Term> terms, const Gradient& gradient, float* sum, bool& adds,
            const Matrix* to);
  void gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g);
  // Gates of channels in a cut tile.
  template <typename Body>
  void for_segments(Body body);
  void segment_pairs();
  void segment_gradients(const Matrix* dq);

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  Decays decays_;
  const int64_t dk_, max_dv_;
  const bool backward_;
  int64_t dv_ = 0, j_ = 0, n_ = 0, rows_ = 0;  // padded columns; key head; tokens, padded
  ValueColumns columns_{};
  Tile tile_{};
  bool reads_ = false, dq_adds_ = false, dk_adds_ = false, cut_ = false;
  float beta_[kTile], factors_[kTile];

  // Queries and keys by rows, times factors; t: transposed.
  bf16 *q_rows_, *k_rows_, *q_in_, *k_in_, *k_out_, *kt_panels_, *kt_, *kt_cut_, *keys_tmp_;
  // The two sides of pairs: queries and keys by which the delta rule reads; keys.
  const bf16 *q_ = nullptr, *k_read_ = nullptr, *k_ = nullptr;
  // Rows that read the state, rows that are summed up in it, and their transposes; pairs.
  const bf16 *q_state_ = nullptr, *k_state_ = nullptr, *k_made_ = nullptr;
  const bf16 *qt_state_ = nullptr, *kt_state_ = nullptr, *kt_made_ = nullptr;
  const bf16 *pairs_ = nullptr, *pairs_t_ = nullptr;
  bf16 *p_, *p_cut_, *s_;
  float *kk_, *l_;
  bf16 *m_panels_, *w_panels_, *x_panels_;  // m: the states of the group
  float* x_rows_;
  // Backward; do: dout, du: -dU.
  const bf16 *w_ = nullptr, *st_ = nullptr;
  bf16 *q_panels_, *k_panels_, *k_read_panels_, *qt_, *kt_read_, *qt_cut_, *x_later_;
  bf16 *pt_, *pt_cut_, *dp_, *dl_, *dpt_, *dlt_, *pairs_panels_, *m_, *d_panels_, *dt_panels_;
  bf16 *w_rows_, *st_rows_, *mt_panels_, *wt_panels_, *do_, *do_panels_, *du_, *du_panels_;
  bf16* r_panels_;
  float *dq_sum_, *dk_sum_, *gates_, *product_;
};

}  // namespace ashlar::kernels::cpu::amx
