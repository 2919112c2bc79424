#include <numeric>

#include "ashlar/kernels/cpu/recurrence/head_tiles.h"

namespace ashlar::kernels::cpu {

template <typename Real>
void HeadTiles<Real>::backward(const Products<Real>& products, const Tile& tile, const Real* M,
                               Real* D, const RecurrenceGradients& g, bool adds) {
  begin(tile, true);
  read(products, M, keys());
  scale_dout(g.dout);
  written_gradient(products, D);
  const int64_t stride = state_stride();
  const Right written = products.right_transposed(Slot::kRight, w_view_);
  const Real* from = g_;
  for (Reader<Real>& r : readers()) {
    products.multiply(products.left(Slot::kLeft, values(from, n_)), written, r.dp, kPairs, false,
                      Skip::kAboveC);
    from += n_ * stride;
  }
  key_gradients(products, M, D);
  if (x_.has_beta()) {
    Real dots[Recurrence::kTile] = {};
    ops_.add_dots(values(dw_, n_), y_, stride, 1, dots);
    for (int64_t i = 0; i < n_; ++i)
      Cells<Real>(g.dbeta_TH).set((tile.begin + i) * x_.shape.H + h_, dots[i]);
  }
  if (g.dlog_decay) gates(M, D, g);
  store(g, adds);
  advance_gradient(products, D);
}

template <typename Real>
void HeadTiles<Real>::backward_state(const Products<Real>& products, const Tile& tile, Real* D,
                                     const Matrix& dout) {
  begin(tile, true);
  scale_dout(dout);
  if (x_.has_beta()) {
    decay_.pairs(products, k_, readers());
    written_gradient(products, D);
  }
  advance_gradient(products, D);
}

template <typename Real>
void HeadTiles<Real>::scale_dout(const Matrix& dout) {
  ops_.copy(rows_of(dout, h_, x_.shape.dv), Real(x_.shape.scale), g_, state_stride());
}

// dw becomes the gradient of V - (K e^c) M - L W, and -dU stands in g behind dO.
template <typename Real>
void HeadTiles<Real>::written_gradient(const Products<Real>& products, const Real* D) {
  const int64_t stride = state_stride();
  const Matrix p = view(queries()->p, n_, n_, kPairs);
  products.multiply(products.left_transposed(Slot::kLeft, p),
                    products.right(Slot::kRight, values(g_, n_)), dw_, stride, false,
                    Skip::kBelowA);
  products.multiply(products.left(Slot::kLeft, decay_.out(k_, k_out_)),
                    products.right(Slot::kRight, values(D, x_.shape.dk)), dw_, stride, true);
  if (x_.has_beta())
    ops_.solve_back(keys()->p, beta_, n_, columns_.cols, stride, dw_, g_ + n_ * stride);
}

// dx of the readers, and of keys the parts through pairs and through the state that leaves.
template <typename Real>
void HeadTiles<Real>::key_gradients(const Products<Real>& products, const Real* M, const Real* D) {
  const int64_t row = padded(x_.shape.dk), count = int64_t(readers().size()) * n_;
  if (tile_.starts) {
    std::fill_n(dx_, count * row, Real(0));
  } else {
    products.multiply(products.left(Slot::kLeft, values(g_, count)),
                      products.right_transposed(Slot::kRight, values(M, x_.shape.dk)), dx_, row,
                      false);
    for (Reader<Real>& r : readers()) decay_.scale_in(r.dx);
  }
  decay_.pair_gradient(products, k_, readers(), dk_pairs_);
  products.multiply(products.left(Slot::kLeft, w_view_),
                    products.right_transposed(Slot::kRight, values(D, x_.shape.dk)), dk_state_, row,
                    false);
  decay_.scale_out(dk_state_);
}

template <typename Real>
void HeadTiles<Real>::gates(const Real* M, const Real* D, const RecurrenceGradients& g) {
  const int64_t dk = x_.shape.dk, H = x_.shape.H, row = padded(dk), stride = state_stride();
  const bool channels = x_.decay == Decay::kChannel;
  const int64_t width = channels ? dk : 1, step = channels ? row : 1;
  Real *later = gates_, *state = gates_ + Recurrence::kTile * row;  // [tokens, width]
  std::fill_n(later, n_ * step, Real(0));
  std::fill_n(state, n_ * step, Real(0));
  const auto add = channels ? ops_.add_products : ops_.add_dots;
  for (Reader<Real>& r : readers()) add(r.x, r.dx, row, 1, later);
  add(k_, dk_pairs_, row, -1, later);
  add(k_, dk_state_, row, 1, state);

  Real* sum = state + Recurrence::kTile * row;  // e^(c_end) <D, M>
  std::fill_n(sum, row, Real(0));
  if (!tile_.starts) {
    ops_.add_dots(values(D, dk), M, stride, 1, sum);
    for (int64_t c = 0; c < dk; ++c) sum[c] *= decay_.whole(c);
    if (!channels) sum[0] = std::accumulate(sum + 1, sum + dk, sum[0]);
  }
  Real* to = g.dlog_decay.as<Real>() + (tile_.begin * H + h_) * width;
  ops_.sum_around(n_, width, step, state, later, sum, to, H * width);
  if (tile_.starts) std::fill_n(to, width, Real(0));  // nothing passes the start of a document
}

template <typename Real>
void HeadTiles<Real>::store(const RecurrenceGradients& g, bool adds) {
  const int64_t group = x_.shape.H / x_.shape.K, dk = x_.shape.dk, row = padded(dk);
  const auto put = [&](const Matrix& all, const Real* rows) {
    const Matrix to = rows_of(all, h_ / group, dk), from = view(rows, n_, dk, row);
    Real* data = reinterpret_cast<Real*>(to.data);
    if (group == 1) return ops_.stream(from, 1, data, to.stride);
    adds ? ops_.add(from, data, to.stride) : ops_.copy(from, 1, data, to.stride);
  };
  ops_.add(view(dk_state_, n_, dk, row), dk_pairs_, row);
  if (x_.has_beta()) ops_.add(view(keys()->dx, n_, dk, row), dk_pairs_, row);
  put(g.dq, queries()->dx);
  put(g.dk, dk_pairs_);
  const Matrix dv = rows_of(g.dv, h_, x_.shape.dv);
  const Real* du = x_.has_beta() ? g_ + n_ * state_stride() : dw_;
  ops_.stream(values(du, n_), x_.has_beta() ? -1 : 1, reinterpret_cast<Real*>(dv.data), dv.stride);
}

template <typename Real>
void HeadTiles<Real>::advance_gradient(const Products<Real>& products, Real* D) {
  const int64_t dk = x_.shape.dk, stride = state_stride();
  if (tile_.starts) return void(std::fill_n(D, dk * stride, Real(0)));
  decay_.scale_state(D, columns_.cols, stride);
  const Real* g = g_;
  for (Reader<Real>& r : readers()) {
    products.multiply(products.left_transposed(Slot::kLeft, r.in),
                      products.right(Slot::kRight, values(g, n_)), D, stride, true);
    g += n_ * stride;
  }
}

template void HeadTiles<float>::backward(const Products<float>&, const Tile&, const float*, float*,
                                         const RecurrenceGradients&, bool);
template void HeadTiles<double>::backward(const Products<double>&, const Tile&, const double*,
                                          double*, const RecurrenceGradients&, bool);
template void HeadTiles<float>::backward_state(const Products<float>&, const Tile&, float*,
                                               const Matrix&);
template void HeadTiles<double>::backward_state(const Products<double>&, const Tile&, double*,
                                                const Matrix&);

}  // namespace ashlar::kernels::cpu
