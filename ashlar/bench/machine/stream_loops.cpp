#include "ashlar/bench/machine/stream_loops.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "ashlar/kernels/isa.h"

namespace ashlar::bench {
namespace {

// One source for every instruction set: these bodies are inlined into functions for each.
template <StreamLoop kLoop>
[[gnu::always_inline]] inline double plain_loop(const StreamArrays& x, int64_t begin, int64_t end) {
  double* __restrict a = x.a, * __restrict b = x.b, * __restrict c = x.c;
  if constexpr (kLoop == StreamLoop::kDot) {
    constexpr int64_t kLanes = 32;
    double sums[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
    for (; i < end; ++i) sums[0] += a[i] * b[i];
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
  } else {
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (kLoop == StreamLoop::kCopy) c[i] = a[i];
      if constexpr (kLoop == StreamLoop::kMul) b[i] = kStreamScale * c[i];
      if constexpr (kLoop == StreamLoop::kAdd) c[i] = a[i] + b[i];
      if constexpr (kLoop == StreamLoop::kTriad) a[i] = b[i] + kStreamScale * c[i];
      if constexpr (kLoop == StreamLoop::kNstream) a[i] += b[i] + kStreamScale * c[i];
    }
    return 0;
  }
}

template <StreamLoop kLoop>
double plain_any(const StreamArrays& x, int64_t begin, int64_t end) {
  return plain_loop<kLoop>(x, begin, end);
}

#ifdef __x86_64__
template <StreamLoop kLoop>
__attribute__((target("avx2,fma"))) double plain_avx2(const StreamArrays& x, int64_t begin,
                                                      int64_t end) {
  return plain_loop<kLoop>(x, begin, end);
}
template <StreamLoop kLoop>
__attribute__((target("avx512f,prefer-vector-width=512"))) double plain_avx512(
    const StreamArrays& x, int64_t begin, int64_t end) {
  return plain_loop<kLoop>(x, begin, end);
}

// Memory, not the width of a store, limits these; every x86-64 has them.
template <StreamLoop kLoop>
double streaming_loop(const StreamArrays& x, int64_t begin, int64_t end) {
  const __m128d scale = _mm_set1_pd(kStreamScale);
  const int64_t whole = begin + (end - begin) / 2 * 2;
  for (int64_t i = begin; i < whole; i += 2) {
    const auto load = [i](const double* from) { return _mm_load_pd(from + i); };
    const auto scaled = [&] { return _mm_mul_pd(scale, load(x.c)); };
    if constexpr (kLoop == StreamLoop::kCopy) _mm_stream_pd(x.c + i, load(x.a));
    if constexpr (kLoop == StreamLoop::kMul) _mm_stream_pd(x.b + i, scaled());
    if constexpr (kLoop == StreamLoop::kAdd)
      _mm_stream_pd(x.c + i, _mm_add_pd(load(x.a), load(x.b)));
    if constexpr (kLoop == StreamLoop::kTriad)
      _mm_stream_pd(x.a + i, _mm_add_pd(load(x.b), scaled()));
    if constexpr (kLoop == StreamLoop::kNstream)
      _mm_stream_pd(x.a + i, _mm_add_pd(load(x.a), _mm_add_pd(load(x.b), scaled())));
  }
  _mm_sfence();
  return plain_loop<kLoop>(x, whole, end);
}
#endif

template <StreamLoop kLoop>
double run_loop(bool streaming, const StreamArrays& x, int64_t begin, int64_t end) {
#ifdef __x86_64__
  if constexpr (kLoop != StreamLoop::kDot)
    if (streaming) return streaming_loop<kLoop>(x, begin, end);
  if (kernels::isa() >= kernels::Isa::kAvx512) return plain_avx512<kLoop>(x, begin, end);
  if (kernels::isa() >= kernels::Isa::kAvx2) return plain_avx2<kLoop>(x, begin, end);
#endif
  (void)streaming;
  return plain_any<kLoop>(x, begin, end);
}

}  // namespace

bool has_streaming_stores() {
#ifdef __x86_64__
  return true;
#else
  return false;
#endif
}

double run_stream(StreamLoop loop, bool streaming, const StreamArrays& arrays, int64_t begin,
                  int64_t end) {
  using enum StreamLoop;
  switch (loop) {
    case kCopy:
      return run_loop<kCopy>(streaming, arrays, begin, end);
    case kMul:
      return run_loop<kMul>(streaming, arrays, begin, end);
    case kAdd:
      return run_loop<kAdd>(streaming, arrays, begin, end);
    case kTriad:
      return run_loop<kTriad>(streaming, arrays, begin, end);
    case kNstream:
      return run_loop<kNstream>(streaming, arrays, begin, end);
    case kDot:
      return run_loop<kDot>(streaming, arrays, begin, end);
  }
  return 0;
}

}  // namespace ashlar::bench
