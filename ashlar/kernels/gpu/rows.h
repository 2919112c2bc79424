// Eight neighbouring elements at a time: 16 bytes of bf16, twice 16 of fp32.
#pragma once

#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"

namespace ashlar::device {

inline constexpr int kPack = 8;

struct Pack {
  float at[kPack];
};

// Single elements of F32 and BF16.
ASHLAR_DEVICE float load_element(const Elements& from, int64_t at) {
  if (from.type == ElementType::kBF16) return to_float(((const Bf16*)from.data)[at]);
  return ((const float*)from.data)[at];
}
ASHLAR_DEVICE void store_element(float x, const Elements& to, int64_t at) {
  if (to.type == ElementType::kBF16)
    ((Bf16*)to.data)[at] = to_bf16(x);
  else
    ((float*)to.data)[at] = x;
}

// The value that these elements hold once this one was stored in them.
ASHLAR_DEVICE float as_stored(const Elements& elements, float x) {
  return elements.type == ElementType::kBF16 ? to_float(to_bf16(x)) : x;
}

ASHLAR_DEVICE Pack load_vectors(const float* from) {
  Pack pack;
#pragma unroll
  for (int first = 0; first < kPack; first += 4) {
    const Vector v = load_vector(from + first);
#pragma unroll
    for (int i = 0; i < 4; ++i) pack.at[first + i] = bits_to_float(v.words[i]);
  }
  return pack;
}
ASHLAR_DEVICE Pack load_vectors(const Bf16* from) {
  const Vector v = load_vector(from);
  Pack pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pack.at[2 * i] = bits_to_float(v.words[i] << 16);
    pack.at[2 * i + 1] = bits_to_float(v.words[i] & 0xffff0000u);
  }
  return pack;
}
ASHLAR_DEVICE void store_vectors(const Pack& pack, float* to) {
#pragma unroll
  for (int first = 0; first < kPack; first += 4) {
    Vector v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.words[i] = float_to_bits(pack.at[first + i]);
    store_vector(to + first, v);
  }
}
ASHLAR_DEVICE void store_vectors(const Pack& pack, Bf16* to) {
  Vector v;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v.words[i] = to_bf16(pack.at[2 * i]).bits | uint32_t(to_bf16(pack.at[2 * i + 1]).bits) << 16;
  store_vector(to, v);
}

// How many of the eight elements of a pack there are, and whether they are read as vectors, which
// needs all of them, or none.
struct Extent {
  int64_t count;
  bool by_vectors;
  ASHLAR_DEVICE bool has(int i) const { return i < count; }
};

// Elements from number `at` on; those beyond the extent are 0.
ASHLAR_DEVICE Pack load_pack(const Elements& from, int64_t at, const Extent& extent) {
  Pack pack = {};
  if (extent.by_vectors) {
    if (extent.count <= 0) return pack;
    return from.type == ElementType::kBF16 ? load_vectors((const Bf16*)from.data + at)
                                           : load_vectors((const float*)from.data + at);
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (extent.has(i)) pack.at[i] = load_element(from, at + i);
  return pack;
}
ASHLAR_DEVICE Pack load_pack(const float* from, int64_t at, const Extent& extent) {
  return load_pack(Elements{(void*)from, ElementType::kF32}, at, extent);
}
ASHLAR_DEVICE void store_pack(const Pack& pack, const Elements& to, int64_t at,
                              const Extent& extent) {
  if (extent.by_vectors) {
    if (extent.count <= 0) return;
    if (to.type == ElementType::kBF16)
      store_vectors(pack, (Bf16*)to.data + at);
    else
      store_vectors(pack, (float*)to.data + at);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (extent.has(i)) store_element(pack.at[i], to, at + i);
}
ASHLAR_DEVICE void store_pack(const Pack& pack, float* to, int64_t at, const Extent& extent) {
  store_pack(pack, Elements{to, ElementType::kF32}, at, extent);
}

// Kernels without sums give each thread some of the numbers 0 to n - 1, of packs or of elements:
// use(i) is called for each i of this thread.  Neighbouring threads get neighbouring numbers.
inline constexpr int kEachThreads = 256, kEachTurns = 4;
inline int64_t blocks_for_each(int64_t n) {
  return (n + kEachThreads * kEachTurns - 1) / (kEachThreads * kEachTurns);
}
template <typename Use>
ASHLAR_DEVICE void for_each_of_block(int64_t n, Use use) {
  const int64_t first = int64_t(block_index()) * kEachThreads * kEachTurns + thread_index();
#pragma unroll
  for (int turn = 0; turn < kEachTurns; ++turn) {
    const int64_t i = first + turn * kEachThreads;
    if (i < n) use(i);
  }
}

// Number i of rows of `width` numbers each.
struct Place {
  int64_t row, column;
};
ASHLAR_DEVICE Place place_of(int64_t i, int64_t rows, int64_t width) {
  if (rows == 1) return {0, i};  // a division of 64 bits takes long
  const int64_t row = i / width;
  return {row, i - row * width};
}

// Pack number i of rows of `width` elements.
ASHLAR_BOTH int64_t packs_of(int64_t width) {
  return (width + kPack - 1) / kPack;
}
struct PackPlace {
  int64_t row, column;
  Extent extent;
};
ASHLAR_DEVICE PackPlace pack_place(int64_t i, int64_t rows, int64_t width, bool by_vectors) {
  const Place p = place_of(i, rows, packs_of(width));
  const int64_t column = p.column * kPack;
  return {p.row, column, {width - column, by_vectors}};
}

// Kernels that sum over rows give each thread of a block a pack of columns of kPartialRows rows.
inline constexpr int kColumnThreads = 64;
inline int64_t blocks_for_columns(int64_t rows, int64_t width) {
  constexpr int64_t kColumns = kColumnThreads * kPack;
  return (rows + kPartialRows - 1) / kPartialRows * ((width + kColumns - 1) / kColumns);
}
struct ColumnPart {
  int64_t partial, first, end;  // rows [first, end)
  int64_t column;               // where the pack begins; perhaps beyond the width
};
ASHLAR_DEVICE ColumnPart column_part(int64_t rows, int64_t width) {
  constexpr int64_t kColumns = kColumnThreads * kPack;
  const int64_t parts = (width + kColumns - 1) / kColumns, partial = block_index() / parts;
  const int64_t first = partial * kPartialRows;
  return {.partial = partial,
          .first = first,
          .end = first + kPartialRows < rows ? first + kPartialRows : rows,
          .column = (block_index() - partial * parts) * kColumns + thread_index() * kPack};
}

}  // namespace ashlar::device
