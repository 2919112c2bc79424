// The value heads of one key head, tile by tile, with products on AMX: the formulas of
// head_tiles.h.
//
// How it works.  Operands are kept in bf16 in the forms that the products read, each made once:
//
//   key head     Q, K by rows, K^T as panels and rows, Q K^T and K K^T (fp32), which the value
//                heads share unless gates of channels are inside them
//   value head   P by rows, the state M as panels, W as panels, also times e^(c_end - c_j) unless
//                gates of channels make that a factor of K
//
// The delta rule solves (I + A) W = X, where X = beta (V - (K e^c) M) and A_ij = beta_i L_ij, in
// two blocks of 32 tokens, with N = (I + A_bb)^-1 - I of both diagonal blocks inverted in fp32:
//
//   W_0 = X_0 + N_0 X_0       X_1 -= A_10 W_0       W_1 = X_1 + N_1 X_1
//
// so that bf16 rounds only what tokens of a block do to each other.  S = [N_0 0; -A_10 N_1] and W
// are handed to backward, which runs the transposed steps in reverse.
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
  // M is the state before the tile; D becomes the gradient of it.
  void backward(int64_t h, const float* M, const Solved& solved, float* D,
                const RecurrenceGradients& g);

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
  bool has_state() const { return !tile_.starts; }
  int64_t group() const { return x_.shape.H / x_.shape.K; }

  void begin_head(int64_t h);
  void prefetch_tile(const Matrix& m, int64_t head, int64_t width) const;
  void scale_keys();
  void segment_pairs();
  // body(first, end, rows) for the segments of the tile, whose factors are made; `rows` covers it.
  template <typename Body>
  void for_segments(Body body) {
    for (int64_t first = 0, end; first < n_; first = end) {
      end = decays_.segment(first);
      body(first, end, round_up(end - first, kBlock));
    }
  }
  void solve(float* x);
  void write(int64_t h, const Solved& solved);
  void panels_of(const float* rows, int64_t num, const float* factors, bf16* to, int64_t depth);

  void restore(int64_t h, const Solved& solved);
  void take_dout(int64_t h, const Matrix& dout);
  void written_gradient(float* D);
  void solve_back(const RecurrenceGradients& g, int64_t h);
  void pair_gradients();
  void key_gradients(const float* M);
  void segment_gradients();
  void gates(int64_t h, const float* M, const float* D, const RecurrenceGradients& g);
  void store(int64_t h, const RecurrenceGradients& g);
  void advance_gradient(float* D);

  const RecurrenceArgs& x_;
  const RowOps<float>& ops_;
  Decays decays_;
  const int64_t dk_, max_dv_;
  const bool backward_;
  int64_t dv_ = 0, j_ = 0, n_ = 0, rows_ = 0;  // padded columns; key head; tokens, padded
  ValueColumns columns_{};
  Tile tile_{};
  bool reads_ = false;
  float beta_[Recurrence::kTile];

  // Forms of the key head; t: transposed.  With gates of channels qk, kk and kt_rows belong to a
  // value head.
  bf16 *q_, *k_, *kt_panels_, *kt_rows_;
  float *qk_, *kk_;
  bf16 *q_panels_, *k_panels_, *qt_rows_;  // backward
  float *dq_sum_, *dk_sum_;
  // Forms of a value head; in: times e^(c_i), out: times e^(c_end - c_j).
  bf16 *q_in_, *k_in_, *k_out_, *keys_tmp_, *p_, *s_, *m_, *m_panels_;
  bf16 *v_, *w_rows_, *w_panels_, *w_out_panels_, *tmp_, *tmp_panels_;
  float *l_, *w_, *att_;
  // Backward.  do: dout, du: -dU.
  bf16 *pt_, *st_, *dp_, *dl_, *dpt_, *dlt_, *d_panels_, *dt_panels_, *mt_panels_, *wt_panels_;
  bf16 *tmp_pairs_, *do_, *do_in_, *do_panels_, *do_in_panels_, *du_, *du_in_, *du_in_panels_,
      *w_out_, *x_later_;
  float *dw_, *dq_, *dk_read_, *dk_pairs_, *dk_state_, *product_, *gates_;
};

}  // namespace ashlar::kernels::cpu::amx
