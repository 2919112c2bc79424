// Rows walked vector by vector, their ends included, stored as F32 or BF16.  Included once per
// target.
#if defined(ASHLAR_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASHLAR_KERNELS_CPU_LANES_INL_H_
#undef ASHLAR_KERNELS_CPU_LANES_INL_H_
#else
#define ASHLAR_KERNELS_CPU_LANES_INL_H_
#endif

#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "ashlar/kernels/cpu/elementwise.h"
#include "ashlar/kernels/cpu/simd/vector-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {

using DU = hn::Rebind<uint32_t, D>;
inline constexpr int64_t kLanes = HWY_LANES(float);

// How many lanes of a vector are in use: all, or the rest of a row.
struct Full {
  static constexpr int64_t count = kLanes;
};
struct Tail {
  int64_t count;
};

// body(i, Full or Tail) for i = 0, kLanes, .. < n.
template <typename Body>
HWY_INLINE void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full());
  if (i < n) body(i, Tail{n - i});
}

HWY_INLINE V set(float value) {
  return hn::Set(D(), value);
}
HWY_INLINE float sum_of_lanes(V v) {
  return hn::GetLane(hn::SumOfLanes(D(), v));
}

HWY_INLINE V load(const float* p, Full) {
  return hn::LoadU(D(), p);
}
#if HWY_TARGET <= HWY_AVX2  // masked accesses touch no byte outside the mask
HWY_INLINE V load(const float* p, Tail tail, float fill = 0) {
  const auto used = hn::FirstN(D(), size_t(tail.count));
  return hn::IfThenElse(used, hn::MaskedLoad(used, D(), p), set(fill));
}
HWY_INLINE void store(V v, float* p, Tail tail) {
  hn::BlendedStore(v, hn::FirstN(D(), size_t(tail.count)), D(), p);
}
#else
HWY_INLINE V load(const float* p, Tail tail, float fill = 0) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(set(fill), D(), lanes);
  std::memcpy(lanes, p, size_t(tail.count) * sizeof(float));
  return hn::Load(D(), lanes);
}
HWY_INLINE void store(V v, float* p, Tail tail) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, D(), lanes);
  std::memcpy(p, lanes, size_t(tail.count) * sizeof(float));
}
#endif
HWY_INLINE V load(const float* p, Full full, float) {
  return load(p, full);
}
HWY_INLINE void store(V v, float* p, Full) {
  hn::StoreU(v, D(), p);
}

// The bf16 nearest to each lane (ties to even; NaN stays NaN), in the upper half of 32 bits.
HWY_INLINE hn::Vec<DU> rounded_bits(V v) {
  const DU du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE V load(const bf16* p, Full) {
  return load(p);
}
HWY_INLINE V load(const bf16* p, Tail tail) {
  HWY_ALIGN bf16 lanes[kLanes];
  std::memset(lanes, 0, sizeof(lanes));
  std::memcpy(lanes, p, size_t(tail.count) * sizeof(bf16));
  return load(lanes, Full());
}
HWY_INLINE void store(V v, bf16* p, Full) {
  store(v, p);
}
HWY_INLINE void store(V v, bf16* p, Tail tail) {
  HWY_ALIGN bf16 lanes[kLanes];
  store(v, lanes, Full());
  std::memcpy(p, lanes, size_t(tail.count) * sizeof(bf16));
}

// Asks for the line that a walk through dense rows reaches 2 KiB later.  The CPU's own prefetchers
// do not keep up with rows of 0.5 to 4 KiB: SwiGLU of rows of 2 KiB that lie in the shared cache
// takes 1.8 times as long without.  An address behind the end of a tensor does no harm.
template <typename T>
HWY_INLINE void fetch_ahead(const T* p) {
  constexpr uintptr_t kAheadBytes = 2048;
  hwy::Prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + kAheadBytes));
}

// Elements from `at` on, in the type they are stored in, and a request for later ones: of rows that
// are walked once.  Rows is T* or, where their type is not known, Cells<float>.
template <typename T, typename Count>
HWY_INLINE V load(const T* rows, int64_t at, Count count) {
  fetch_ahead(rows + at);
  return load(rows + at, count);
}
template <typename T, typename Count>
HWY_INLINE void store(V v, T* rows, int64_t at, Count count) {
  fetch_ahead(rows + at);
  store(v, rows + at, count);
}
template <typename Count>
HWY_INLINE V load(const Cells<float>& cells, int64_t at, Count count) {
  if (cells.dtype() == DType::kBF16)
    return load(reinterpret_cast<const bf16*>(cells.data()), at, count);
  return load(reinterpret_cast<const float*>(cells.data()), at, count);
}
template <typename Count>
HWY_INLINE void store(V v, const Cells<float>& cells, int64_t at, Count count) {
  if (cells.dtype() == DType::kBF16)
    return store(v, reinterpret_cast<bf16*>(cells.data()), at, count);
  store(v, reinterpret_cast<float*>(cells.data()), at, count);
}

// The rows of a tensor as T* of its type, or as Cells<float>.
template <typename Rows>
HWY_INLINE Rows rows_of(const Cells<float>& cells) {
  if constexpr (std::is_same_v<Rows, Cells<float>>)
    return cells;
  else
    return reinterpret_cast<Rows>(cells.data());
}

// Calls use(std::type_identity<Rows>()) for tensors, absent ones left out, that all have one type,
// with Rows T*; else with Cells<float>.  A loop over T* neither asks for the type of each vector
// nor, if the pointers are its own variables, reads them again after each store.
template <typename Use>
HWY_INLINE void with_element_type(std::initializer_list<Cells<float>> tensors, Use use) {
  int64_t num_bf16 = 0, num_present = 0;
  for (const Cells<float>& cells : tensors) {
    num_present += bool(cells);
    num_bf16 += cells && cells.dtype() == DType::kBF16;
  }
  if (num_bf16 == 0) return use(std::type_identity<float*>());
  if (num_bf16 == num_present) return use(std::type_identity<bf16*>());
  use(std::type_identity<Cells<float>>());
}

template <typename Count>
HWY_INLINE void add_to(V v, float* p, Count count) {
  store(hn::Add(load(p, count), v), p, count);
}

// Pairs (a_i, b_i) that lie interleaved from element 2i on.
struct Pair {
  V a, b;
};
HWY_INLINE Pair load_pairs(const float* p, Full) {
  Pair pair;
  hn::LoadInterleaved2(D(), p, pair.a, pair.b);
  return pair;
}
HWY_INLINE void store_pairs(Pair v, float* p, Full) {
  hn::StoreInterleaved2(v.a, v.b, D(), p);
}
HWY_INLINE Pair load_pairs(const bf16* p, Full) {
  const auto both = hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p));
  return {hn::BitCast(D(), hn::ShiftLeft<16>(both)),
          hn::BitCast(D(), hn::And(both, hn::Set(DU(), 0xffff0000u)))};
}
#if HWY_TARGET == HWY_AVX3_DL  // see store() in vector-inl.h
HWY_INLINE void store_pairs(Pair v, bf16* p, Full) {
  alignas(64) static constexpr uint16_t kInterleaved[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i halves;  // all of a, then all of b
  __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(halves) : "v"(v.b.raw), "v"(v.a.raw));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(kInterleaved), halves));
}
#else
HWY_INLINE void store_pairs(Pair v, bf16* p, Full) {
  const auto a = hn::ShiftRight<16>(rounded_bits(v.a));
  const auto b = hn::And(rounded_bits(v.b), hn::Set(DU(), 0xffff0000u));
  hn::StoreU(hn::Or(a, b), DU(), reinterpret_cast<uint32_t*>(p));
}
#endif
template <typename T>
HWY_INLINE Pair load_pairs(const T* p, Tail tail) {
  HWY_ALIGN T lanes[2 * kLanes];
  std::memset(static_cast<void*>(lanes), 0, sizeof(lanes));
  std::memcpy(static_cast<void*>(lanes), p, size_t(2 * tail.count) * sizeof(T));
  return load_pairs(lanes, Full());
}
template <typename T>
HWY_INLINE void store_pairs(Pair v, T* p, Tail tail) {
  HWY_ALIGN T lanes[2 * kLanes];
  store_pairs(v, lanes, Full());
  std::memcpy(static_cast<void*>(p), lanes, size_t(2 * tail.count) * sizeof(T));
}
template <typename T, typename Count>
HWY_INLINE Pair load_pairs(const T* rows, int64_t at, Count count) {
  fetch_ahead(rows + at);
  if constexpr (sizeof(T) == sizeof(float)) fetch_ahead(rows + at + kLanes);
  return load_pairs(rows + at, count);
}
template <typename T, typename Count>
HWY_INLINE void store_pairs(Pair v, T* rows, int64_t at, Count count) {
  fetch_ahead(rows + at);
  if constexpr (sizeof(T) == sizeof(float)) fetch_ahead(rows + at + kLanes);
  store_pairs(v, rows + at, count);
}
template <typename Count>
HWY_INLINE Pair load_pairs(const Cells<float>& cells, int64_t at, Count count) {
  if (cells.dtype() == DType::kBF16)
    return load_pairs(reinterpret_cast<const bf16*>(cells.data()), at, count);
  return load_pairs(reinterpret_cast<const float*>(cells.data()), at, count);
}
template <typename Count>
HWY_INLINE void store_pairs(Pair v, const Cells<float>& cells, int64_t at, Count count) {
  if (cells.dtype() == DType::kBF16)
    return store_pairs(v, reinterpret_cast<bf16*>(cells.data()), at, count);
  store_pairs(v, reinterpret_cast<float*>(cells.data()), at, count);
}

}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled include guard
