#include "ashlar/kernels/cpu/recurrence/amx_decay.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {
Decays::Decays(const RecurrenceArgs& x, Pieces<float>& memory)
    : x_(x), ops_(row_ops<float>()), stride_(padded(x.shape.dk)) {
  const int64_t rows = kTile * (channels() ? stride_ : 1);
  between_ = memory.take(kPairs);
  in_ = memory.take(rows);
  out_ = memory.take(rows);
  whole_ = memory.take(stride_);
  if (!channels()) return;
  a_ = memory.take(rows);
  later_ = memory.take(rows);
  earlier_ = memory.take(rows);
}

void Decays::begin(int64_t h, const Tile& tile) {
  n_ = tile.size();
  channels() ? begin_channels(h, tile) : begin_rows(h, tile);
}

void Decays::begin_rows(int64_t h, const Tile& tile) {
  const Cells<float> log_decay(x_.log_decay);
  std::fill_n(between_, kPairs, 0.0f);
  if (x_.decay == Decay::kHead) std::fill_n(between_, n_, log_decay[h]);
  if (x_.decay == Decay::kToken)
    for (int64_t i = 0; i < n_; ++i) between_[i] = log_decay[(tile.begin + i) * x_.shape.H + h];
  if (tile.starts) between_[0] = 0;  // no state passes it
  ops_.exp(between_, kPairs, between_);
  running_products(between_, n_, 1, in_, out_);
  std::fill_n(in_ + n_, kTile - n_, 0.0f);
  std::fill_n(out_ + n_, kTile - n_, 0.0f);
  std::fill_n(whole_, stride_, in_[n_ - 1]);
}

void Decays::begin_channels(int64_t h, const Tile& tile) {
  const int64_t dk = x_.shape.dk;
  std::fill_n(between_, kPairs, 1.0f);
  if (dk < stride_) std::fill_n(a_, n_ * stride_, 0.0f);
  ops_.copy(Matrix::of(x_.log_decay).columns(h * dk, (h + 1) * dk).row_range(tile.begin, tile.end),
            1, a_, stride_);
  if (tile.starts) std::fill_n(a_, dk, 0.0f);  // no state passes it
  ops_.exp(a_, n_ * stride_, a_);
  running_products(a_, n_, stride_, in_, out_);
  std::copy_n(in_ + (n_ - 1) * stride_, stride_, whole_);
}

int64_t Decays::segment(int64_t first) const {
  return segment_products(a_, first, n_, stride_, later_, earlier_);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
