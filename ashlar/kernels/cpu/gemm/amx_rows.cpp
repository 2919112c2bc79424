// How it works.  With one row, as in decoding, the tile instructions load 16 rows of B for one of
// A, and each tile sets their shapes.  Vectors read a panel as one stream, at the rate of the
// memory; from three rows on they are the slower ones.
//
// The sums are those of tdpbf16ps, so that a token has the same bits alone and in a batch: over 32
// neighbours of k, fused multiply-adds sum the products of even and of odd k apart, from zero; both
// are added, and then the sum so far.  Denormals count as zero throughout.  A bf16 is the upper
// half of a float: a pair of neighbours is split by a shift and a mask.
#include "ashlar/kernels/cpu/gemm/amx_rows.h"

#include <array>
#include <cstring>

#include "ashlar/kernels/cpu/simd/intrinsics.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::gemm {
namespace {

constexpr int64_t kPairsPerStep = 16, kHalfLanes = 16;
// Bytes.  Weights come from memory, and the hardware stops foreseeing at the end of every page.
constexpr int64_t kRowsAhead = 4096;

struct EvenOdd {
  __m512 even, odd;
};
[[gnu::target("avx512f"), gnu::always_inline]] inline EvenOdd split(__m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int32_t(0xffff0000u))))};
}

// 16 pairs of a panel, as floats.
struct Bf16Pairs {
  static constexpr int64_t kBytes = 64;
  [[gnu::target("avx512f"), gnu::always_inline]] static EvenOdd load(const std::byte* at) {
    return split(_mm512_loadu_si512(at));
  }
};
struct Int8Pairs {
  static constexpr int64_t kBytes = 32;
  [[gnu::target("avx512f"), gnu::always_inline]] static EvenOdd load(const std::byte* at) {
    const __m512i both =
        _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24)),
            _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 8))};
  }
};

template <typename Pairs, int kRows>
[[gnu::target("avx512f")]] void rows_tile(int64_t padded_k, const Left& a, const std::byte* panel,
                                          float* c, int64_t c_stride, bool accumulate) {
  __m512 sum[kRows][2];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < 2; ++h)
      sum[r][h] =
          accumulate ? _mm512_loadu_ps(c + r * c_stride + h * kHalfLanes) : _mm512_setzero_ps();
  const std::byte* left = a.data;
  for (int64_t k = 0; k < padded_k; k += 2 * kPairsPerStep, left += kPairsPerStep * 4) {
    EvenOdd part[kRows][2];
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
      for (int h = 0; h < 2; ++h) part[r][h] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < kPairsPerStep; ++pair, panel += 2 * Pairs::kBytes) {
      const EvenOdd b[2] = {Pairs::load(panel), Pairs::load(panel + Pairs::kBytes)};
      _mm_prefetch(panel + kRowsAhead, _MM_HINT_T0);
      if (Pairs::kBytes == 64) _mm_prefetch(panel + kRowsAhead + 64, _MM_HINT_T0);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        int32_t both;
        std::memcpy(&both, left + r * a.row_bytes + pair * 4, sizeof both);
        const EvenOdd x = split(_mm512_set1_epi32(both));
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          part[r][h].even = _mm512_fmadd_ps(x.even, b[h].even, part[r][h].even);
          part[r][h].odd = _mm512_fmadd_ps(x.odd, b[h].odd, part[r][h].odd);
        }
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
      for (int h = 0; h < 2; ++h)
        sum[r][h] = _mm512_add_ps(sum[r][h], _mm512_add_ps(part[r][h].even, part[r][h].odd));
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < 2; ++h) _mm512_storeu_ps(c + r * c_stride + h * kHalfLanes, sum[r][h]);
}

// Denormals are zeros, as inputs and as results, while it lives.
class DenormalsAreZero {
 public:
  DenormalsAreZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kBoth); }
  ~DenormalsAreZero() { _mm_setcsr(before_); }
  DenormalsAreZero(const DenormalsAreZero&) = delete;

 private:
  static constexpr uint32_t kBoth = 0x8040;
  uint32_t before_;
};

}  // namespace

void amx_rows_tile(int64_t rows, int64_t padded_k, const Left& a, const std::byte* panel, float* c,
                   int64_t c_stride, bool accumulate) {
  static constexpr std::array kTiles = {&rows_tile<Bf16Pairs, 1>, &rows_tile<Bf16Pairs, 2>};
  static_assert(kTiles.size() == kMaxVectorRows);
  const DenormalsAreZero scope;
  kTiles[size_t(rows - 1)](padded_k, a, panel, c, c_stride, accumulate);
}

void amx_rows_tile_int8(int64_t rows, int64_t padded_k, const Left& a, const int8_t* panel,
                        float* c, int64_t c_stride) {
  static constexpr std::array kTiles = {&rows_tile<Int8Pairs, 1>, &rows_tile<Int8Pairs, 2>};
  const DenormalsAreZero scope;
  kTiles[size_t(rows - 1)](padded_k, a, reinterpret_cast<const std::byte*>(panel), c, c_stride,
                           false);
}

}  // namespace ashlar::kernels::cpu::gemm

#endif
