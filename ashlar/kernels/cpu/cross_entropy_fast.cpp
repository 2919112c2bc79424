#include <algorithm>
#include <cmath>

#include "ashlar/kernels/cpu/cross_entropy_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/cross_entropy_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/vector-inl.h"
#include "hwy/cache_control.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kChunk = 2048;  // logits that are read from memory once for maximum and sum
constexpr int64_t kKept = 16384;  // logits of a row whose exponentials are kept, not computed again

constexpr int64_t kAhead = 512;  // elements of a gradient between a store and its prefetch

// Asks for an address ahead, perhaps behind the end of the row or of all rows.
template <typename T>
HWY_INLINE void fetch(const T* p) {
  hwy::Prefetch(p);
}

// The maximum and the sum of exp(x - maximum) so far go on over n elements; the exponentials, of
// x - the new maximum, go to `kept` unless it is null.
HWY_INLINE void add_chunk(const float* x, int64_t n, float& max, float& sum, float* kept) {
  const D d;
  const int64_t whole = n / lanes() * lanes();
  V highest0 = hn::Set(d, max), highest1 = highest0;
  int64_t i = 0;
  for (; i + 2 * lanes() <= whole; i += 2 * lanes()) {
    highest0 = hn::Max(highest0, load(x + i));
    highest1 = hn::Max(highest1, load(x + i + lanes()));
  }
  for (; i < whole; i += lanes()) highest0 = hn::Max(highest0, load(x + i));
  float new_max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(highest0, highest1)));
  for (; i < n; ++i) new_max = std::max(new_max, x[i]);
  const V maxes = hn::Set(d, new_max);
  V total = hn::Zero(d);
  for (i = 0; i < whole; i += lanes()) {
    fetch(x + i + kChunk);  // of the next chunk, whose maximum comes before anything else
    const V e = exp_approx(hn::Sub(load(x + i), maxes));
    total = hn::Add(total, e);
    if (kept) store(e, kept + i);
  }
  float new_sum = hn::GetLane(hn::SumOfLanes(d, total));
  for (; i < n; ++i) {
    const float e = std::exp(x[i] - new_max);
    new_sum += e;
    if (kept) kept[i] = e;
  }
  sum = sum * std::exp(max - new_max) + new_sum;
  max = new_max;
}

float logsumexp_row(const float* x, int64_t n) {
  float max = -1e30f, sum = 0.0f;  // finite, so that differences to -inf are -inf
  for (int64_t i = 0; i < n; i += kChunk)
    add_chunk(x + i, std::min(kChunk, n - i), max, sum, nullptr);
  return max + std::log(sum);
}

template <typename T>
HWY_INLINE float softmax_of(const float* x, int64_t n, float scale, T* y) {
  const D d;
  alignas(64) float kept[kKept], max_of_chunk[kKept / kChunk];
  float max = -1e30f, sum = 0.0f;
  for (int64_t i = 0; i < n; i += kChunk) {
    add_chunk(x + i, std::min(kChunk, n - i), max, sum, i < kKept ? kept + i : nullptr);
    if (i < kKept) max_of_chunk[i / kChunk] = max;
  }
  const float log_sum = max + std::log(sum);
  int64_t i = 0;
  for (int64_t end; i < std::min(n, kKept); i = end) {
    const float factor = std::exp(max_of_chunk[i / kChunk] - log_sum) * scale;
    const V factors = hn::Set(d, factor);
    end = std::min(n, i + kChunk);
    for (; i + lanes() <= end; i += lanes()) {
      fetch(y + i + kAhead);
      store(hn::Mul(load(kept + i), factors), y + i);
    }
    for (; i < end; ++i) y[i] = T(kept[i] * factor);
  }
  const V log_sums = hn::Set(d, log_sum), scales = hn::Set(d, scale);
  for (; i + lanes() <= n; i += lanes())
    store(hn::Mul(exp_approx(hn::Sub(load(x + i), log_sums)), scales), y + i);
  for (; i < n; ++i) y[i] = T(std::exp(x[i] - log_sum) * scale);
  return log_sum;
}
float softmax_f32(const float* x, int64_t n, float scale, float* y) {
  return softmax_of(x, n, scale, y);
}
float softmax_bf16(const float* x, int64_t n, float scale, bf16* y) {
  return softmax_of(x, n, scale, y);
}

void exp_row(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += lanes()) {
    float in[16] = {}, out[16];
    const int64_t count = std::min(lanes(), n - i);
    std::copy_n(x + i, count, in);
    store(exp_approx(load(in)), out);
    std::copy_n(out, count, y + i);
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(logsumexp_row);
HWY_EXPORT(softmax_f32);
HWY_EXPORT(softmax_bf16);
HWY_EXPORT(exp_row);

float logsumexp_fast(const float* x, int64_t n) {
  return dispatch(HWY_DISPATCH_TABLE(logsumexp_row))(x, n);
}
float softmax_fast(const float* x, int64_t n, float scale, float* y) {
  return dispatch(HWY_DISPATCH_TABLE(softmax_f32))(x, n, scale, y);
}
float softmax_fast(const float* x, int64_t n, float scale, bf16* y) {
  return dispatch(HWY_DISPATCH_TABLE(softmax_bf16))(x, n, scale, y);
}
void exp_fast(const float* x, int64_t n, float* y) {
  dispatch(HWY_DISPATCH_TABLE(exp_row))(x, n, y);
}

}  // namespace ashlar::kernels::cpu
#endif
