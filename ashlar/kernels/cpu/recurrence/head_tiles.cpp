#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu {

template <typename Real>
HeadTiles<Real>::HeadTiles(const RecurrenceArgs& x, int64_t cols, bool backward,
                           Pieces<Real>& memory)
    : x_(x), ops_(row_ops<Real>()), decay_(x, memory), max_cols_(cols) {
  constexpr int64_t kTile = Recurrence::kTile;
  const int64_t keys = kTile * padded(x.shape.dk), values = kTile * padded(cols),
                pairs = kTile * kPairs;
  in_ = memory.take(2 * keys);
  later_ = memory.take(2 * keys);
  p_ = memory.take(2 * pairs);
  from_state_ = memory.take(2 * values);
  w_ = memory.take(values);
  k_out_ = memory.take(keys);
  dp_ = memory.take(backward ? 2 * pairs : 0);
  dx_ = memory.take(backward ? 2 * keys : 0);
  g_ = memory.take(backward ? 2 * values : 0);
  dw_ = memory.take(backward ? values : 0);
  dk_pairs_ = memory.take(backward ? keys : 0);
  dk_state_ = memory.take(backward ? keys : 0);
  gates_ = memory.take(backward ? 2 * keys + padded(x.shape.dk) : 0);
}

template <typename Real>
int64_t HeadTiles<Real>::largest_operand(const RecurrenceArgs& x, int64_t cols) {
  return std::max({2 * Recurrence::kTile, x.shape.dk, cols});
}

template <typename Real>
void HeadTiles<Real>::begin_head(int64_t h, const ValueColumns& columns) {
  ASHLAR_ASSERT(columns.cols <= max_cols_);
  h_ = h;
  columns_ = columns;
  decay_.begin_head(h);
}

template <typename Real>
Matrix HeadTiles<Real>::rows_of(const Matrix& m, int64_t head, int64_t width) const {
  return m.columns(head * width, (head + 1) * width).row_range(tile_.begin, tile_.end);
}

template <typename Real>
void HeadTiles<Real>::begin(const Tile& tile, bool reads) {
  tile_ = tile;
  n_ = tile.size();
  reads_ = reads;
  decay_.prepare(tile);
  const int64_t j = h_ / (x_.shape.H / x_.shape.K), row = padded(x_.shape.dk);
  k_ = rows_of(x_.k, j, x_.shape.dk);
  int64_t before = 0;  // rows of earlier readers
  for (Reader<Real>& r : readers()) {
    const bool is_query = &r == queries();
    r.x = is_query ? rows_of(x_.q, j, x_.shape.dk) : k_;
    r.strict = !is_query;
    r.in_rows = in_ + before * row;
    r.x_later = later_ + before * row;
    r.p = p_ + before * kPairs;
    r.dp = dp_ ? dp_ + before * kPairs : nullptr;
    r.dx = dx_ ? dx_ + before * row : nullptr;
    r.in = decay_.in(r.x, r.in_rows);
    before += n_;
  }
  if (!x_.has_beta()) return;
  const Cells<Real> beta(x_.beta_TH);
  for (int64_t i = 0; i < n_; ++i) beta_[i] = beta[(tile.begin + i) * x_.shape.H + h_];
}

template <typename Real>
void HeadTiles<Real>::read(const Products<Real>& products, const Real* M, Reader<Real>* from) {
  decay_.pairs(products, k_, readers());
  Reader<Real>* const end = readers().data() + readers().size();
  if (!tile_.starts && from && from < end) {
    const Right state = products.right(Slot::kRight, values(M, x_.shape.dk));
    for (Reader<Real>* r = from; r < end; ++r)
      products.multiply(products.left(Slot::kLeft, r->in), state,
                        from_state_ + (r - readers_) * n_ * state_stride(), state_stride(), false);
  }
  write();
}

// Computes what the tokens write, from what their keys read of the state.
template <typename Real>
void HeadTiles<Real>::write() {
  const Matrix v =
      rows_of(x_.v, h_, x_.shape.dv).columns(columns_.first, columns_.first + columns_.values);
  w_view_ = v;
  if (!x_.has_beta()) return;
  const int64_t stride = state_stride(), rest = columns_.cols - columns_.values;
  y_ = from_state_ + (reads_ ? n_ * stride : 0);
  Real* behind = y_ + columns_.values;
  if (tile_.starts) {
    ops_.copy(v, 1, y_, stride);
    for (int64_t i = 0; i < n_; ++i) std::fill_n(behind + i * stride, rest, Real(0));
  } else {
    ops_.subtract_from(v, y_, stride);
    ops_.copy(view(behind, n_, rest, stride), -1, behind, stride);
  }
  ops_.solve(keys()->p, beta_, n_, columns_.cols, stride, y_, w_);
  w_view_ = values(w_, n_);
}

template <typename Real>
void HeadTiles<Real>::forward(const Products<Real>& products, const Tile& tile, Real* M,
                              const Matrix& out) {
  begin(tile, out.data != nullptr);
  read(products, M, readers_);
  const bool has_state = !tile.starts;
  const int64_t stride = state_stride();
  const Right written = products.right(Slot::kRight, w_view_);
  if (reads_) {
    const Matrix p = view(queries()->p, n_, n_, kPairs);
    products.multiply(products.left(Slot::kLeft, p), written, from_state_, stride, has_state,
                      Skip::kAboveA);
    const Matrix to =
        rows_of(out, h_, x_.shape.dv).columns(columns_.first, columns_.first + columns_.values);
    ops_.stream(values(from_state_, n_), Real(x_.shape.scale), reinterpret_cast<Real*>(to.data),
                to.stride);
  }
  if (has_state) decay_.scale_state(M, columns_.cols, stride);
  const Left keys = products.left_transposed(Slot::kLeft, decay_.out(k_, k_out_));
  products.multiply(keys, written, M, stride, has_state);
}

template class HeadTiles<float>;
template class HeadTiles<double>;

}  // namespace ashlar::kernels::cpu
