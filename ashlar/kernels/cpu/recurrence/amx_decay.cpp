#include "ashlar/kernels/cpu/recurrence/amx_decay.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::amx {

Decays::Decays(const RecurrenceArgs& x, Pieces<float>& memory)
    : x_(x), ops_(row_ops<float>()), stride_(padded(x.shape.dk)) {
  const int64_t rows = kTile * (channels() ? stride_ : 1);
  for (float** to : {&a_, &in_, &inverse_, &from_state_, &to_end_}) *to = memory.take(rows);
  for (float** to : {&passed_, &made_, &first_}) *to = memory.take(stride_);
  between_ = memory.take(kTile);
  if (!channels()) return;
  later_ = memory.take(rows);
  earlier_ = memory.take(rows);
}

void Decays::begin(int64_t h, const Tile& tile) {
  n_ = tile.size();
  faint_ = cut_ = false;
  if (none()) return void(std::fill_n(passed_, stride_, 1.0f));
  channels() ? begin_channels(h, tile) : begin_rows(h, tile);
}

void Decays::begin_rows(int64_t h, const Tile& tile) {
  const int64_t n = n_;
  const Cells<float> log_decay(x_.log_decay);
  if (x_.decay == Decay::kHead)
    std::fill_n(a_, n, log_decay[h]);
  else
    for (int64_t i = 0; i < n; ++i) a_[i] = log_decay[(tile.begin + i) * x_.shape.H + h];
  if (tile.starts) a_[0] = 0;  // no state passes it
  ops_.exp(a_, n, a_);
  faint_ = !(a_[0] >= kFaintest);
  if (faint_) {
    std::fill_n(first_, stride_, a_[0]);
    a_[0] = 1;
  }
  float passed = 1;
  for (int64_t i = 0; i < n; ++i) {
    const float next = passed * a_[i];
    const bool starts = !(next >= kFaintest);  // a segment
    if (starts && !cut_) {
      cut_ = true;
      std::fill_n(between_, n, 1.0f);
    }
    if (starts) between_[i] = next;
    in_[i] = passed = starts ? 1.0f : next;
  }
  for (int64_t i = 0; i < n; ++i) inverse_[i] = 1 / in_[i];
  std::fill_n(passed_, stride_, passed);
  if (!cut_) return;
  std::copy_n(passed_, stride_, made_);
  running_products(between_, n, 1, from_state_, to_end_);
  std::fill_n(passed_, stride_, passed * from_state_[n - 1]);
}

void Decays::begin_channels(int64_t h, const Tile& tile) {
  const int64_t dk = x_.shape.dk, n = n_;
  if (dk < stride_) std::fill_n(a_, n * stride_, 0.0f);
  ops_.copy(Matrix::of(x_.log_decay).columns(h * dk, (h + 1) * dk).row_range(tile.begin, tile.end),
            1, a_, stride_);
  if (tile.starts) std::fill_n(a_, dk, 0.0f);  // no state passes it
  ops_.exp(a_, n * stride_, a_);
  for (int64_t c = 0; c < stride_; ++c) faint_ |= !(a_[c] >= kFaintest);
  for (int64_t c = 0; c < stride_ && faint_; ++c) {
    first_[c] = a_[c] >= kFaintest ? 1.0f : a_[c];
    if (first_[c] != 1) a_[c] = 1;
  }
  first_end_ = segment_products(a_, n, stride_, in_, inverse_);
  cut_ = first_end_ < n;
  if (!cut_) return void(std::copy_n(in_ + (n - 1) * stride_, stride_, passed_));
  running_products(a_, n, stride_, from_state_, to_end_);
  std::copy_n(from_state_ + (n - 1) * stride_, stride_, passed_);
  std::fill_n(made_, stride_, 1.0f);
}

void Decays::pass_first(float* state, int64_t cols) const {
  for (int64_t c = 0; c < stride_ && faint_; ++c)
    for (float* x = state + c * cols; first_[c] != 1 && x < state + (c + 1) * cols; ++x)
      *x = first_[c] < kSmallest ? 0.0f : *x * first_[c];
}

int64_t Decays::segment(int64_t first) const {
  if (first == 0) {
    std::copy_n(in_, first_end_ * stride_, later_);
    std::copy_n(inverse_, first_end_ * stride_, earlier_);
    return first_end_;
  }
  const int64_t at = first * stride_;
  products_back(a_, first, stride_, earlier_);
  std::fill_n(later_ + at, stride_, 1.0f);
  std::fill_n(earlier_ + at, stride_, 1.0f);
  return first + 1 +
         segment_products(a_ + at + stride_, n_ - first - 1, stride_, later_ + at + stride_,
                          earlier_ + at + stride_);
}

}  // namespace ashlar::kernels::cpu::amx
#endif
