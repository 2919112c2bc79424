// The decays of one head inside a tile: how much of the state that enters reaches token i, how
// much of what token j writes reaches the end, and how much of it reaches token i.
//
//   c_i = sum of log a over the tokens of the tile up to i   (of a head and token, or by channel)
//   in    e^(c_i)            out   e^(c_end - c_j)           pairs   e^(c_i - c_j), j <= i
//
// No exponent is above 0.  Differences of c are sums of what lies between, never differences of
// sums, which large decays elsewhere in the tile would make inexact.
#pragma once

#include <span>

#include "ashlar/kernels/cpu/recurrence/products.h"
#include "ashlar/kernels/cpu/recurrence/rows.h"
#include "ashlar/kernels/cpu/recurrence/tiles.h"

namespace ashlar::kernels::cpu {

// Hands out a thread's memory piece by piece; with no memory it counts.
template <typename Real>
class Pieces {
 public:
  explicit Pieces(Real* memory) : next_(memory) {}
  Real* take(int64_t count) {
    const int64_t size = round_up(count, int64_t(64 / sizeof(Real)));
    Real* piece = next_;
    if (next_) next_ += size;
    taken_ += size;
    return piece;
  }
  int64_t taken() const { return taken_; }

 private:
  Real* next_;
  int64_t taken_ = 0;
};

// The readers of a tile's keys: its queries, and with the delta rule also its keys, which read the
// state before they write.  Rows of p and dp are kPairs apart, those of the others padded(dk).
template <typename Real>
struct Reader {
  Matrix x;       // [tokens, dk]
  bool strict;    // token i meets keys before it only
  Matrix in;      // x e^(c_i)
  Real* in_rows;  // memory for it
  Real* p;        // [tokens, tokens]: x_i . k_j e^(c_i - c_j)
  Real *dp, *dx;  // gradients
  Real* x_later;  // gates of channels: x_i e^(c_i - r), r = c before the sub-tile of i
};

template <typename Real>
class TileDecay {
 public:
  TileDecay(const RecurrenceArgs& x, Pieces<Real>& memory);
  void begin_head(int64_t h);
  void prepare(const Tile& tile);

  // x times in or out: rows in `to`, or x itself where nothing decays.
  Matrix in(const Matrix& x, Real* to) const;
  Matrix out(const Matrix& x, Real* to) const;
  void scale_in(Real* x) const;   // [tokens, dk]
  void scale_out(Real* x) const;  // [tokens, dk]
  // Row c of a state [dk, cols], rows `stride` apart, times e^(c_end).
  void scale_state(Real* state, int64_t cols, int64_t stride) const;
  Real whole(int64_t channel) const;  // e^(c_end)

  // Fills p of the readers, exactly 0 where a token does not see another.
  void pairs(const Products<Real>& products, const Matrix& k,
             std::span<Reader<Real>> readers) const;
  // From dp, of which it reads what is seen: adds to dx of the readers, and fills dk [tokens, dk].
  // Reads what pairs left in the readers.
  void pair_gradient(const Products<Real>& products, const Matrix& k,
                     std::span<Reader<Real>> readers, Real* dk) const;

 private:
  bool channels() const { return x_.decay == Decay::kChannel; }
  int64_t stride() const { return padded(x_.shape.dk); }
  const Real* pair_factors() const { return x_.decay == Decay::kNone ? nullptr : pairs_; }
  void prepare_pairs(int64_t n);
  void prepare_channels(const Tile& tile);
  void join_sub_tiles();
  void channel_pairs(const Products<Real>& products, const Matrix& k,
                     std::span<Reader<Real>> readers) const;
  void channel_gradient(const Products<Real>& products, const Matrix& k,
                        std::span<Reader<Real>> readers, Real* dk) const;

  const RecurrenceArgs& x_;
  const RowOps<Real>& ops_;
  int64_t h_ = 0, n_ = 0;                         // the head; tokens of the tile
  Real *log_a_, *in_ = nullptr, *out_ = nullptr;  // [kTile], of channels [kTile, dk]
  Real* pairs_ = nullptr;                         // of heads and tokens: [kTile, kTile]
  // For decays of channels, in rows of stride(): gates; e^(c_i - r), where r is c before the
  // sub-tile of i; for every sub-tile but the first e^(r - c_j) and k_j e^(r - c_j) of the tokens
  // before it; products.
  Real *a_ = nullptr, *later_ = nullptr, *earlier_ = nullptr, *k_earlier_ = nullptr,
       *product_ = nullptr;
};

// First row, in earlier_, of sub-tile number s: 16 rows belong to number 1, 32 to number 2, ..
constexpr int64_t rows_before(int64_t s) {
  return kSubTile * s * (s - 1) / 2;
}

}  // namespace ashlar::kernels::cpu
