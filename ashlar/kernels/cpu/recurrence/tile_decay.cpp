// How it works.  Decays of a head or a token are factors of rows and of pairs, and pairs are one
// masked product.  Gates of channels are inside the sum over channels.  A tile is cut into
// sub-tiles of 16 tokens:
//
//            keys 0-15   16-31    32-47          r is c before the sub-tile of the readers i
//   i 0-15   diagonal
//   16-31    product     diagonal                product:  (x_i e^(c_i - r)) . (k_j e^(r - c_j))
//   32-47    product ..........   diagonal       diagonal: gates multiplied token by token
//
// Both exponents of a product are at most 0, and r depends only on tokens before i.
#include "ashlar/kernels/cpu/recurrence/tile_decay.h"

namespace ashlar::kernels::cpu {

template <typename Real>
TileDecay<Real>::TileDecay(const RecurrenceArgs& x, Pieces<Real>& memory)
    : x_(x), ops_(row_ops<Real>()) {
  constexpr int64_t kTile = Recurrence::kTile, kEarlier = rows_before(kTile / kSubTile);
  const int64_t rows = kTile * (channels() ? stride() : 1);
  log_a_ = memory.take(rows);
  in_ = memory.take(rows);
  out_ = memory.take(rows);
  if (!channels()) {
    pairs_ = memory.take(kTile * kPairs);
    return;
  }
  a_ = memory.take(rows);
  later_ = memory.take(rows);
  product_ = memory.take(rows);
  earlier_ = memory.take(kEarlier * stride());
  k_earlier_ = memory.take(kEarlier * stride());
}

template <typename Real>
void TileDecay<Real>::begin_head(int64_t h) {
  h_ = h;
  if (x_.decay != Decay::kHead) return;
  // The same in every tile.
  std::fill_n(log_a_, Recurrence::kTile, Cells<Real>(x_.log_decay)[h]);
  prepare_pairs(Recurrence::kTile);
}

template <typename Real>
void TileDecay<Real>::prepare(const Tile& tile) {
  n_ = tile.size();
  if (x_.decay == Decay::kChannel) return prepare_channels(tile);
  if (x_.decay == Decay::kToken) {
    const Cells<Real> log_decay(x_.log_decay);
    for (int64_t i = 0; i < n_; ++i) log_a_[i] = log_decay[(tile.begin + i) * x_.shape.H + h_];
    if (tile.starts) log_a_[0] = 0;  // no state passes it
    prepare_pairs(n_);
  }
  if (x_.decay != Decay::kNone) std::copy_n(pairs_ + (n_ - 1) * kPairs, n_, out_);
}

template <typename Real>
void TileDecay<Real>::prepare_pairs(int64_t n) {
  Real c = 0;
  for (int64_t i = 0; i < n; ++i) in_[i] = c += log_a_[i];
  ops_.exp(in_, n, in_);
  ops_.exp_pairs(log_a_, n, pairs_);
}

// Sums run inside sub-tiles; what lies further apart is a product of what whole sub-tiles pass.
template <typename Real>
void TileDecay<Real>::prepare_channels(const Tile& tile) {
  const int64_t dk = x_.shape.dk, row = stride();
  ops_.copy(
      Matrix::of(x_.log_decay).columns(h_ * dk, (h_ + 1) * dk).row_range(tile.begin, tile.end), 1,
      log_a_, row);
  if (tile.starts) std::fill_n(log_a_, dk, Real(0));             // no state passes it
  const auto sum = [&](const Real* sums, int64_t i, Real* to) {  // to = sums + log a_i
    std::copy_n(sums, dk, to);
    ops_.add(view(log_a_ + i * row, 1, dk, row), to, row);
  };
  for (int64_t i = 0; i < n_; ++i) {
    const int64_t last = std::min(n_, (i / kSubTile + 1) * kSubTile) - 1;  // of the sub-tile
    if (i % kSubTile == 0) {
      std::copy_n(log_a_ + i * row, dk, later_ + i * row);
      std::fill_n(out_ + last * row, dk, Real(0));
      for (int64_t j = last; j > i; --j) sum(out_ + j * row, j, out_ + (j - 1) * row);
    } else {
      sum(later_ + (i - 1) * row, i, later_ + i * row);
    }
  }
  const auto exp = [&](const Real* from, Real* to) {
    for (int64_t i = 0; i < n_; ++i) ops_.exp(from + i * row, dk, to + i * row);
  };
  exp(log_a_, a_);
  exp(later_, later_);
  exp(out_, out_);
  join_sub_tiles();
}

template <typename Real>
void TileDecay<Real>::join_sub_tiles() {
  const int64_t dk = x_.shape.dk, row = stride();
  const auto rows = [&](const Real* x, int64_t first, int64_t end) {
    return view(x + first * row, end - first, dk, row);
  };
  // Row by row times the one row `by`.
  const auto scale = [&](const Matrix& from, const Real* by, Real* to) {
    ops_.times(from, by, 0, to, row);
  };
  const auto whole = [&](int64_t first) {  // what the sub-tile that begins there passes
    return later_ + (std::min(n_, first + kSubTile) - 1) * row;
  };
  for (int64_t first = 0; first < n_; first += kSubTile) {
    const int64_t end = std::min(n_, first + kSubTile);
    if (first == 0)
      ops_.copy(rows(later_, 0, end), 1, in_, row);
    else
      scale(rows(later_, first, end), in_ + (first - 1) * row, in_ + first * row);
    if (first == 0) continue;
    Real* earlier = earlier_ + rows_before(first / kSubTile) * row;
    const Real* before = earlier_ + rows_before(first / kSubTile - 1) * row;
    const int64_t previous = first - kSubTile;
    scale(view(before, previous, dk, row), whole(previous), earlier);
    ops_.copy(rows(out_, previous, first), 1, earlier + previous * row, row);
  }
  Real* passed = product_;  // by the sub-tiles behind
  std::fill_n(passed, dk, Real(1));
  for (int64_t first = (n_ - 1) / kSubTile * kSubTile; first >= 0; first -= kSubTile) {
    scale(rows(out_, first, std::min(n_, first + kSubTile)), passed, out_ + first * row);
    scale(view(passed, 1, dk, row), whole(first), passed);
  }
}

template <typename Real>
Matrix TileDecay<Real>::in(const Matrix& x, Real* to) const {
  if (x_.decay == Decay::kNone) return x;
  if (channels())
    ops_.times(x, in_, stride(), to, stride());
  else
    ops_.scale(x, in_, to, stride());
  return view(to, x.rows, x.cols, stride());
}

template <typename Real>
Matrix TileDecay<Real>::out(const Matrix& x, Real* to) const {
  if (x_.decay == Decay::kNone) return x;
  if (channels())
    ops_.times(x, out_, stride(), to, stride());
  else
    ops_.scale(x, out_, to, stride());
  return view(to, x.rows, x.cols, stride());
}

template <typename Real>
void TileDecay<Real>::scale_in(Real* x) const {
  in(view(x, n_, x_.shape.dk, stride()), x);
}
template <typename Real>
void TileDecay<Real>::scale_out(Real* x) const {
  out(view(x, n_, x_.shape.dk, stride()), x);
}

template <typename Real>
Real TileDecay<Real>::whole(int64_t channel) const {
  if (x_.decay == Decay::kNone) return 1;
  return channels() ? in_[(n_ - 1) * stride() + channel] : in_[n_ - 1];
}

template <typename Real>
void TileDecay<Real>::scale_state(Real* state, int64_t cols, int64_t stride) const {
  if (x_.decay == Decay::kNone) return;
  const Matrix rows = view(state, x_.shape.dk, cols, stride);
  if (channels())
    ops_.scale(rows, in_ + (n_ - 1) * this->stride(), state, stride);
  else
    ops_.copy(rows, whole(0), state, stride);
}

template <typename Real>
void TileDecay<Real>::pairs(const Products<Real>& products, const Matrix& k,
                            std::span<Reader<Real>> readers) const {
  if (readers.empty()) return;
  if (channels()) {
    channel_pairs(products, k, readers);
  } else {
    const auto keys = products.right_transposed(Slot::kRight, k);
    for (Reader<Real>& r : readers)
      products.multiply(products.left(Slot::kLeft, r.x), keys, r.p, kPairs, false, Skip::kAboveC);
  }
  for (Reader<Real>& r : readers)
    ops_.mask(channels() ? nullptr : pair_factors(), n_, r.strict, r.p);
}

template <typename Real>
void TileDecay<Real>::channel_pairs(const Products<Real>& products, const Matrix& k,
                                    std::span<Reader<Real>> readers) const {
  const int64_t row = stride();
  for (int64_t first = 0; first < n_; first += kSubTile) {
    const int64_t end = std::min(n_, first + kSubTile),
                  before = rows_before(first / kSubTile) * row;
    if (first > 0) {
      ops_.times(k.row_range(0, first), earlier_ + before, row, k_earlier_ + before, row);
      const auto keys = products.right_transposed(
          Slot::kRight, view(k_earlier_ + before, first, x_.shape.dk, row));
      for (Reader<Real>& r : readers) {
        Real* later = r.x_later + first * row;
        ops_.times(r.x.row_range(first, end), later_ + first * row, row, later, row);
        products.multiply(products.left(Slot::kLeft, view(later, end - first, x_.shape.dk, row)),
                          keys, r.p + first * kPairs, kPairs, false);
      }
    }
    for (Reader<Real>& r : readers)
      ops_.diagonal_pairs(
          {r.x.row_range(first, end), k.row_range(first, end), a_ + first * row, row},
          r.p + first * kPairs + first);
  }
}

template <typename Real>
void TileDecay<Real>::pair_gradient(const Products<Real>& products, const Matrix& k,
                                    std::span<Reader<Real>> readers, Real* dk) const {
  for (Reader<Real>& r : readers)
    ops_.mask(channels() ? nullptr : pair_factors(), n_, r.strict, r.dp);
  if (channels()) return channel_gradient(products, k, readers, dk);
  const auto keys = products.right(Slot::kRight, k);
  for (Reader<Real>& r : readers)
    products.multiply(products.left(Slot::kLeft, view(r.dp, n_, n_, kPairs)), keys, r.dx, stride(),
                      true, Skip::kAboveA);
  for (Reader<Real>& r : readers)
    products.multiply(products.left_transposed(Slot::kLeft, view(r.dp, n_, n_, kPairs)),
                      products.right(Slot::kRight, r.x), dk, stride(), &r != readers.data(),
                      Skip::kBelowA);
}

template <typename Real>
void TileDecay<Real>::channel_gradient(const Products<Real>& products, const Matrix& k,
                                       std::span<Reader<Real>> readers, Real* dk) const {
  const int64_t row = stride(), width = x_.shape.dk;
  std::fill_n(dk, n_ * row, Real(0));
  for (int64_t first = 0; first < n_; first += kSubTile) {
    const int64_t count = std::min(kSubTile, n_ - first),
                  before = rows_before(first / kSubTile) * row;
    for (Reader<Real>& r : readers)
      ops_.diagonal_gradient({r.x.row_range(first, first + count),
                              k.row_range(first, first + count), a_ + first * row, row},
                             r.dp + first * kPairs + first, row, r.dx + first * row,
                             dk + first * row);
    if (first == 0) continue;
    const auto add = [&](const Real* factors, int64_t rows, Real* to) {
      ops_.add_products(view(product_, rows, width, row), factors, row, 1, to);
    };
    const auto keys = products.right(Slot::kRight, view(k_earlier_ + before, first, width, row));
    for (Reader<Real>& r : readers) {
      products.multiply(
          products.left(Slot::kLeft, view(r.dp + first * kPairs, count, first, kPairs)), keys,
          product_, row, false);
      add(later_ + first * row, count, r.dx + first * row);
    }
    bool sum = false;
    for (Reader<Real>& r : readers) {
      const auto later =
          products.right(Slot::kRight, view(r.x_later + first * row, count, width, row));
      products.multiply(
          products.left_transposed(Slot::kLeft, view(r.dp + first * kPairs, count, first, kPairs)),
          later, product_, row, sum);
      sum = true;
    }
    add(earlier_ + before, first, dk);
  }
}

template class TileDecay<float>;
template class TileDecay<double>;

}  // namespace ashlar::kernels::cpu
