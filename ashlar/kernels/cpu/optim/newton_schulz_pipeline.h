// Newton-Schulz on tiles: where elements come from, what becomes of a block of sums, and the
// pipeline in which vector units work on blocks while tiles multiply the next.
#pragma once

#include <array>

#include "ashlar/kernels/cpu/optim/newton_schulz_blocks.h"
#include "ashlar/kernels/cpu/optim/newton_schulz_reference.h"

#if defined(__x86_64__)

namespace ashlar::kernels::cpu::newton_schulz {

// 16 sums of row r.
struct PlainValues {
  const Sums* sums;
  ASHLAR_TILES_INLINE __m512 operator()(int64_t r, int64_t half) const {
    return _mm512_load_ps(sums->row(r) + half * 256);
  }
};

// c sum + b a, where the rows of a are bf16.
struct PolynomialValues {
  const Sums* sums;
  const std::byte* a;
  ASHLAR_TILES_INLINE __m512 operator()(int64_t r, int64_t half) const {
    const __m256i a16 = _mm256_load_si256(reinterpret_cast<const __m256i*>(a + r * 64 + half * 32));
    const __m512 a32 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a16), 16));
    return _mm512_fmadd_ps(PlainValues{sums}(r, half), _mm512_set1_ps(float(kC)),
                           _mm512_mul_ps(a32, _mm512_set1_ps(float(kB))));
  }
};

// X in memory from some row and column on, scaled, zero beyond its end.  Columns of a block stand
// in the order of `places`.
struct WideValues {
  const float* x;
  int64_t stride, rows, cols;
  float factor;
  __m512i places[2];
  ASHLAR_TILES_INLINE __m512 operator()(int64_t r, int64_t half) const {
    const float* row = x + r * stride;
    return _mm512_mul_ps(
        _mm512_set1_ps(factor),
        _mm512_permutex2var_ps(load(row, r, 0), places[half], load(row + 16, r, 16)));
  }
  ASHLAR_TILES_INLINE __m512 load(const float* at, int64_t r, int64_t col) const {
    const int64_t count = r < rows ? std::clamp<int64_t>(cols - col, 0, 16) : 0;
    return _mm512_maskz_loadu_ps(__mmask16((1 << count) - 1), at);
  }
};

// The transpose of X in memory likewise: columns of a block are rows of X, in groups of four.
struct TallValues {
  const float* x;
  int64_t stride, rows, cols;
  float factor;
  std::array<int8_t, 8> groups;
  ASHLAR_TILES_INLINE __m512 operator()(int64_t line, int64_t half) const {
    const int64_t r = groups[size_t(line / 4)] * 4 + line % 4;
    const int64_t count = r < rows ? std::clamp<int64_t>(cols - half * 16, 0, 16) : 0;
    return _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_maskz_loadu_ps(__mmask16((1 << count) - 1),
                                                                       x + r * stride + half * 16));
  }
};

// The uses of a block of sums: each is converted, and later turned.
struct KeptBlock {  // sums that stay what they are
  ASHLAR_TILES_INLINE void convert(const Sums&, int64_t) const {}
  ASHLAR_TILES_INLINE void turn(int64_t) const {}
};

struct BlockOfX {
  std::byte* rows;
  ASHLAR_TILES_INLINE void convert(const Sums& sums, int64_t s) const {
    newton_schulz::convert(PlainValues{&sums}, rows, s);
  }
  ASHLAR_TILES_INLINE void turn(int64_t) const {}
};

struct BlockOfA {
  std::byte *rows, *pairs, *mirrored;
  ASHLAR_TILES_INLINE void convert(const Sums& sums, int64_t s) const {
    newton_schulz::convert(PlainValues{&sums}, rows, pairs, s);
  }
  ASHLAR_TILES_INLINE void turn(int64_t s) const { turn_back(pairs, mirrored, s); }
};

struct BlockOfP {
  std::byte *rows, *pairs, *mirrored;
  const std::byte* a;
  ASHLAR_TILES_INLINE void convert(const Sums& sums, int64_t s) const {
    newton_schulz::convert(PolynomialValues{&sums, a}, rows, pairs, s);
  }
  ASHLAR_TILES_INLINE void turn(int64_t s) const { turn_back(pairs, mirrored, s); }
};

struct BlockOfResult {
  float* x;
  int64_t stride, rows, cols;
  bool tall;
  ASHLAR_TILES_INLINE void convert(const Sums& sums, int64_t s) const {
    if (tall) {
      // Quarters of the four tiles: lines of X are columns of the sums.
      for (int64_t q = 2 * s; q < 2 * s + 2; ++q) {
        const int64_t tile = q / 4, row = tile % 2 * 16 + q % 4 * 4, col = tile / 2 * 16;
        __m512i out[4];
        turn_quarter(sums.at + tile * 256, q % 4, out);
        for (int64_t i = 0; i < 4; ++i) store(row + i, col, _mm512_castsi512_ps(out[i]));
      }
      return;
    }
    for (int64_t r = 4 * s; r < 4 * s + 4; ++r)
      for (int64_t half = 0; half < 2; ++half)
        store(r, half * 16, _mm512_load_ps(sums.row(r) + half * 256));
  }
  ASHLAR_TILES_INLINE void turn(int64_t) const {}
  ASHLAR_TILES_INLINE void store(int64_t r, int64_t col, __m512 values) const {
    if (r >= rows) return;
    const int64_t count = std::clamp<int64_t>(cols - col, 0, 16);
    _mm512_mask_storeu_ps(x + r * stride + col, __mmask16((1 << count) - 1), values);
  }
};

// A part of the next panel, to be made while a block is multiplied: interleaved from a block of
// `rows` (null: nothing).
struct InterleavedPart {
  const std::byte* from;
  std::byte* to;
  ASHLAR_TILES_INLINE void slice(int64_t s) const {
    if (from) interleave(from, to, s);
  }
};

// The same, and rows of X brought near that the block will be stored to.
struct StoredPart {
  InterleavedPart next;
  const float* x;
  int64_t stride;
  ASHLAR_TILES_INLINE void slice(int64_t s) const {
    next.slice(s);
    for (int64_t r = 4 * s; r < 4 * s + 4; ++r) {
      __builtin_prefetch(x + r * stride, 1);
      __builtin_prefetch(x + r * stride + 16, 1);
    }
  }
};

// The same of turned blocks that follow each other: `per_slice` quarters of a tile at a slice, from
// `first` on, up to `end`.
struct TurnedPart {
  const std::byte* from;
  std::byte* to;
  int64_t first, per_slice, end;
  ASHLAR_TILES_INLINE void slice(int64_t s) const {
    const int64_t begin = first + s * per_slice;
    for (int64_t q = begin; q < std::min(begin + per_slice, end); ++q) turn(from, to, q);
  }
};

// Multiplies blocks one after the other.  While one is multiplied, the one before is converted, the
// one before that turned, and a part of the next panel made.  `idle` stands for blocks that are not
// there.
template <typename Block>
class Pipeline {
 public:
  explicit Pipeline(const Block& idle) : idle_(idle), converted_(idle), turned_(idle) {}
  // The sums go to `to`, or, if that is null, to the block.
  template <typename Part>
  ASHLAR_TILES_INLINE void multiply(const std::byte* left, const std::byte* right, int64_t steps,
                                    const float* start, float* to, const Block& block,
                                    const Part& part) {
    // A local, which the compiler may keep in registers: tiles are stored to this object.
    const Work<Part> work{converted_, turned_, &sums_[1 - next_], part};
    multiply_block(left, right, steps, start, to ? to : sums_[next_].at, work);
    advance(block);
  }
  ASHLAR_TILES_INLINE void finish() {
    for (int i = 0; i < 2; ++i) {
      const Work<InterleavedPart> work{converted_, turned_, &sums_[1 - next_], {nullptr, nullptr}};
      for (int64_t s = 0; s < kSlices; ++s) work.slice(s);
      advance(idle_);
    }
  }

 private:
  template <typename Part>
  struct Work {
    Block converted, turned;
    const Sums* sums;
    Part part;
    ASHLAR_TILES_INLINE void slice(int64_t s) const {
      converted.convert(*sums, s);
      turned.turn(s);
      part.slice(s);
    }
  };
  ASHLAR_TILES_INLINE void advance(const Block& block) {
    turned_ = converted_;
    converted_ = block;
    next_ = 1 - next_;
  }
  Block idle_, converted_, turned_;
  int next_ = 0;
  Sums sums_[2] = {};
};

}  // namespace ashlar::kernels::cpu::newton_schulz

#endif
