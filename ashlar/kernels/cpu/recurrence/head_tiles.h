// One value head, tile by tile: products of a tile's tokens with each other, and of tokens with the
// state that enters the tile.
//
// How it works, forward.  P are the pairs of queries, L those of keys (delta rule, strictly
// before):
//
//   read      Q, K e^(c_i), P, L                       TileDecay
//   written   Y = V - (K e^(c_i)) M - L W, W = beta Y   row by row; W = V without beta
//   out       scale (P W + (Q e^(c_i)) M)
//   M         e^(c_end) M + (K e^(c_end - c_j))^T W
//
// and backward, where D is the gradient of the state that leaves the tile, dO that of `out` times
// scale, and dU that of V - (K e^(c_i)) M:
//
//   dW        P^T dO + (K e^(c_end - c_j)) D
//   dU        beta (dW - L^T dU), from the last row on; dW without beta.  It is dV
//   dP, dL    dO W^T, -dU W^T
//   dQ, dK    e^(c_i) (dO M^T), e^(c_i) (-dU M^T), e^(c_end - c_j) (W D^T), and through P and L
//   D         e^(c_end) D + (Q e^(c_i))^T dO - (K e^(c_i))^T dU
//
// The decay of token i is in every e^(c_i' - c_j) with j < i <= i', so that its gradient is
//   e^(c_end) <D, M> + sum over j < i of k_j dk_j, of the part through e^(c_end - c_j)
//                    + sum over i' >= i of q dq - k dk, of the parts through e^(c_i' - c_j)
// by channel; k dk counts as q dq does where k reads.
#pragma once

#include "ashlar/kernels/cpu/recurrence/tile_decay.h"

namespace ashlar::kernels::cpu {

// Which tokens' values: columns [first, first + values) of the head, in a state of `cols` columns;
// those behind are a transition, of which no value is written.
struct ValueColumns {
  int64_t first, values, cols;
};

template <typename Real>
class HeadTiles {
 public:
  // Memory for states of at most `cols` columns, and for backward.
  HeadTiles(const RecurrenceArgs& x, int64_t cols, bool backward, Pieces<Real>& memory);
  // The largest number of rows or columns of any operand of a product.
  static int64_t largest_operand(const RecurrenceArgs& x, int64_t cols);

  void begin_head(int64_t h, const ValueColumns& columns);
  int64_t state_stride() const { return padded(columns_.cols); }

  // M [dk, cols] becomes the state after the tile; `out`, if it has data, is filled.
  void forward(const Products<Real>& products, const Tile& tile, Real* M, const Matrix& out);
  // M is the state before the tile; D becomes the gradient of it.  `adds`: to dq and dk.
  void backward(const Products<Real>& products, const Tile& tile, const Real* M, Real* D,
                const RecurrenceGradients& g, bool adds);
  // D alone, which needs no M.
  void backward_state(const Products<Real>& products, const Tile& tile, Real* D,
                      const Matrix& dout);

 private:
  using Left = typename Products<Real>::Left;
  using Right = typename Products<Real>::Right;

  void begin(const Tile& tile, bool reads);  // reads: queries count
  Matrix rows_of(const Matrix& m, int64_t head, int64_t width) const;
  Matrix values(const Real* data, int64_t rows) const {
    return view(data, rows, columns_.cols, state_stride());
  }
  // Fills p of the readers, what `from` and the readers behind it read of the state, y and w.
  void read(const Products<Real>& products, const Real* M, Reader<Real>* from);
  void write();
  void scale_dout(const Matrix& dout);
  void written_gradient(const Products<Real>& products, const Real* D);
  void key_gradients(const Products<Real>& products, const Real* M, const Real* D);
  void gates(const Real* M, const Real* D, const RecurrenceGradients& g);
  void store(const RecurrenceGradients& g, bool adds);
  void advance_gradient(const Products<Real>& products, Real* D);
  Reader<Real>* queries() { return reads_ ? &readers_[0] : nullptr; }
  Reader<Real>* keys() { return x_.has_beta() ? &readers_[reads_ ? 1 : 0] : nullptr; }
  std::span<Reader<Real>> readers() { return {readers_, size_t(reads_) + x_.has_beta()}; }

  const RecurrenceArgs& x_;
  const RowOps<Real>& ops_;
  TileDecay<Real> decay_;
  ValueColumns columns_{};
  int64_t h_ = 0, n_ = 0, max_cols_;
  Tile tile_{};
  bool reads_ = false;
  Reader<Real> readers_[2];
  Matrix k_, w_view_;
  Real beta_[Recurrence::kTile];
  // Rows of readers one after another: queries, then keys.
  Real *in_, *later_, *p_, *dp_, *dx_;            // [2 kTile, dk] and [2 kTile, kTile]
  Real *from_state_, *g_;                         // [2 kTile, cols]; g: dO, -dU
  Real *y_ = nullptr, *w_, *dw_;                  // [kTile, cols]; y: in from_state
  Real *k_out_, *dk_pairs_, *dk_state_, *gates_;  // [kTile, dk]; gates: [2 kTile + 1, dk]
};

}  // namespace ashlar::kernels::cpu
