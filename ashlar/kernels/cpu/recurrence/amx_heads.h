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
// so that bf16 rounds only what tokens of a block do to each other.  S = [N_0 0; -A_10 N_1] and W'
// are handed to backward, which runs the transposed steps in reverse.
//
// The gradient of a gate takes the products of rounded numbers that the gradients of q and k are
// made from, so that pairs on one side of the gate cancel.
#pragma once

#include "ashlar/kernels/cpu/recurrence/amx_decay.h"
#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu::amx {

// Rows that a run of the states leaves for backward, of one value head.
struct Solved {
  bf16* w;  // [tokens, padded(dv)]
  bf16* s;  // [tokens, kPairs]
};

class Heads {
 public:
  // Memory for states of at most `cols` columns, and for backward.
  Heads(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<float>& memory);

  void begin_group(int64_t j, const ValueColumns& columns);
  int64_t state_size() const { return dk_ * dv_; }  // [dk, dv], both padded

  // The tile's queries and keys.  reads: queries count.
  void begin(const Tile& tile, bool reads);
  // M becomes the state after the tile; `out`, if it has data, is filled, as is `solved` with the
  // delta rule, if it has data.
  void forward(int64_t h, float* M, const Matrix& out, const Solved& solved);
  // M is the state before the tile, and is used up; D becomes the gradient of it.
  void backward(int64_t h, float* M, const Solved& solved, float* D, const RecurrenceGradients& g);
  // After backward of all heads: stores the gradients of queries and keys.
  void finish(const RecurrenceGradients& g);

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
  void solve(float* x);
  void write(int64_t h, const float* M, const Solved& solved);
  void panels_of(const float* rows, int64_t num, bf16* to, int64_t depth);

  void written_gradient(int64_t h, const Solved& solved, float* D, const RecurrenceGradients& g);
  void solve_back(const RecurrenceGradients& g, int64_t h);
  void pair_gradients();
  void key_gradients(const float* M);
  void scale_gradient(const float* factors, float* x);
  void gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g);
  void add_key_gradients();
  // Gates of channels in a cut tile.
  template <typename Body>
  void for_segments(Body body);
  void segment_pairs();
  void segment_gradients();

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  Decays decays_;
  const int64_t dk_, max_dv_;
  const bool backward_;
  int64_t dv_ = 0, j_ = 0, n_ = 0, rows_ = 0;  // padded columns; key head; tokens, padded
  ValueColumns columns_{};
  Tile tile_{};
  bool reads_ = false, adds_ = false, cut_ = false;
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
  bf16 *m_, *m_panels_, *v_, *w_, *w_panels_, *tmp_panels_;
  float* x_rows_;
  // Backward; do: dout, du: -dU.
  bf16 *q_panels_, *k_panels_, *k_read_panels_, *qt_, *kt_read_, *qt_cut_, *x_later_;
  bf16 *pt_, *pt_cut_, *st_, *dp_, *dl_, *dpt_, *dlt_, *pairs_panels_, *d_panels_, *dt_panels_;
  bf16 *mt_panels_, *wt_panels_, *do_, *do_panels_, *du_, *du_panels_;
  float *dw_, *dq_, *dk_read_, *dk_pairs_, *dk_state_, *dq_sum_, *dk_sum_, *gates_, *product_;
};

}  // namespace ashlar::kernels::cpu::amx
