#include "ashlar/kernels/cpu/recurrence/amx_decay.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

Decays::Decays(const RecurrenceArgs& x, Pieces<float>& memory)
    : x_(x), ops_(row_ops<float>()), stride_(padded(x.shape.dk)) {
  const int64_t rows = kTile * (channels() ? stride_ : 1);
  a_ = memory.take(rows);
  in_ = memory.take(rows);
  inverse_ = memory.take(rows);
  whole_ = memory.take(stride_);
  dropped_ = memory.take(stride_);
}

Tile Decays::begin(int64_t h, const Tile& tile) {
  drops_ = false;
  if (none()) {
    std::fill_n(whole_, stride_, 1.0f);
    return tile;
  }
  const int64_t size = channels() ? begin_channels(h, tile) : begin_rows(h, tile);
  return {tile.begin, tile.begin + size, tile.starts};
}

int64_t Decays::begin_rows(int64_t h, const Tile& tile) {
  const int64_t n = tile.size();
  const Cells<float> log_decay(x_.log_decay);
  if (x_.decay == Decay::kHead)
    std::fill_n(a_, n, log_decay[h]);
  else
    for (int64_t i = 0; i < n; ++i) a_[i] = log_decay[(tile.begin + i) * x_.shape.H + h];
  if (tile.starts) a_[0] = 0;  // no state passes it
  ops_.exp(a_, n, a_);
  drops_ = a_[0] < kFaintest;
  if (drops_) a_[0] = 1;
  float passed = 1;
  int64_t i = 0;
  for (; i < n; ++i) {
    const float next = passed * a_[i];
    if (next < kFaintest) break;
    in_[i] = passed = next;
  }
  for (int64_t j = 0; j < i; ++j) inverse_[j] = 1 / in_[j];
  std::fill_n(whole_, stride_, passed);
  std::fill_n(dropped_, stride_, drops_ ? 1.0f : 0.0f);
  return i;
}

int64_t Decays::begin_channels(int64_t h, const Tile& tile) {
  const int64_t dk = x_.shape.dk, n = tile.size();
  if (dk < stride_) std::fill_n(a_, n * stride_, 0.0f);
  ops_.copy(Matrix::of(x_.log_decay).columns(h * dk, (h + 1) * dk).row_range(tile.begin, tile.end),
            1, a_, stride_);
  if (tile.starts) std::fill_n(a_, dk, 0.0f);  // no state passes it
  ops_.exp(a_, n * stride_, a_);
  for (int64_t c = 0; c < stride_; ++c) {
    dropped_[c] = a_[c] < kFaintest ? 1.0f : 0.0f;
    if (a_[c] >= kFaintest) continue;
    a_[c] = 1;
    drops_ = true;
  }
  const int64_t size = running_products(a_, n, stride_, in_, inverse_);
  std::copy_n(in_ + (size - 1) * stride_, stride_, whole_);
  return size;
}

void Decays::drop(float* state, int64_t cols) const {
  for (int64_t c = 0; c < stride_ && drops_; ++c)
    if (drops(c)) std::fill_n(state + c * cols, cols, 0.0f);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
