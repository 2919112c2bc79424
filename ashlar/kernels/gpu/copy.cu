// copy.h, moe.h: copies, conversions, sums, factors and patterns, each element by itself.
#include "ashlar/kernels/gpu/gpu.h"
#include "ashlar/kernels/gpu/launch.h"
#include "ashlar/kernels/gpu/rows.h"

namespace ashlar::device {
namespace {

ASHLAR_DEVICE void copy_unit(const Vector* from, Vector* to) {
  store_vector(to, load_vector(from));
}
template <typename Unit>
ASHLAR_DEVICE void copy_unit(const Unit* from, Unit* to) {
  *to = *from;
}

template <typename Unit>
ASHLAR_KERNEL(kEachThreads)
copy_bytes_kernel(CopyBytes x) {
  const int64_t units = x.row_bytes / int64_t(sizeof(Unit));
  for_each_of_block(x.rows * units, [&](int64_t i) {
    const Place p = place_of(i, x.rows, units);
    copy_unit((const Unit*)((const std::byte*)x.from + p.row * x.from_stride_bytes) + p.column,
              (Unit*)((std::byte*)x.to + p.row * x.to_stride_bytes) + p.column);
  });
}

template <typename Unit>
ASHLAR_KERNEL(kEachThreads)
gather_rows_kernel(GatherRows x) {
  const int64_t units = x.row_bytes / int64_t(sizeof(Unit));
  const int32_t rows_in_use = x.row_of_expert[x.num_experts];
  for_each_of_block(x.rows * units, [&](int64_t i) {
    const Place p = place_of(i, x.rows, units);
    if (p.row >= rows_in_use) return;
    copy_unit((const Unit*)x.from + x.token_of_row[p.row] * units + p.column, (Unit*)x.to + i);
  });
}

ASHLAR_DEVICE void fill_unit(uint64_t pattern, Vector* to) {
  const uint32_t low = uint32_t(pattern), high = uint32_t(pattern >> 32);
  store_vector(to, {{low, high, low, high}});
}
template <typename Unit>
ASHLAR_DEVICE void fill_unit(uint64_t pattern, Unit* to) {
  *to = Unit(pattern);
}

template <typename Unit>
ASHLAR_KERNEL(kEachThreads)
fill_kernel(Fill x) {
  const int64_t units = x.row_bytes / int64_t(sizeof(Unit));
  for_each_of_block(x.rows * units, [&](int64_t i) {
    const Place p = place_of(i, x.rows, units);
    fill_unit(x.pattern, (Unit*)((std::byte*)x.to + p.row * x.stride_bytes) + p.column);
  });
}

// F32 and BF16, by packs.
ASHLAR_KERNEL(kEachThreads) convert_packs_kernel(Convert x) {
  const int64_t packs = (x.width + kPack - 1) / kPack;
  for_each_of_block(x.rows * packs, [&](int64_t i) {
    const Place p = place_of(i, x.rows, packs);
    const int64_t column = p.column * kPack, to = p.row * x.to_stride + column;
    const Extent extent{x.width - column, x.by_vectors};
    Pack pack = load_pack(x.from, p.row * x.from_stride + column, extent);
    if (x.adds) {
      const Pack before = load_pack(x.to, to, extent);
#pragma unroll
      for (int j = 0; j < kPack; ++j) pack.at[j] = add(before.at[j], pack.at[j]);
    }
    store_pack(pack, x.to, to, extent);
  });
}

ASHLAR_DEVICE double load_double(const Elements& from, int64_t at) {
  return from.type == ElementType::kF64 ? ((const double*)from.data)[at]
                                        : double(load_element(from, at));
}
ASHLAR_DEVICE void store_double(double x, const Elements& to, int64_t at) {
  if (to.type == ElementType::kF64)
    ((double*)to.data)[at] = x;
  else
    store_element(float(x), to, at);
}

// F64 to or from any type; sums of F64 and of I64.
ASHLAR_KERNEL(kEachThreads) convert_elements_kernel(Convert x) {
  for_each_of_block(x.rows * x.width, [&](int64_t i) {
    const Place p = place_of(i, x.rows, x.width);
    const int64_t from = p.row * x.from_stride + p.column, to = p.row * x.to_stride + p.column;
    if (x.from.type == ElementType::kI64) {
      ((int64_t*)x.to.data)[to] += ((const int64_t*)x.from.data)[from];
      return;
    }
    const double value = load_double(x.from, from);
    store_double(x.adds ? add(load_double(x.to, to), value) : value, x.to, to);
  });
}

ASHLAR_KERNEL(kEachThreads) scale_kernel(Scale x) {
  for_each_of_block(packs_of(x.n), [&](int64_t number) {
    const int64_t at = number * kPack;
    const Extent extent{x.n - at, x.by_vectors && at + kPack <= x.n};
    Pack pack = load_pack(x.x, at, extent);
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.at[i] = mul(pack.at[i], x.factor);
    store_pack(pack, x.x, at, extent);
  });
}

// Calls use(Unit{}) with the longest unit that divides all of the numbers.
template <typename Use>
std::string with_unit(uint64_t all, Use use) {
  if (all % 16 == 0) return use(Vector{});
  if (all % 8 == 0) return use(uint64_t{});
  if (all % 4 == 0) return use(uint32_t{});
  if (all % 2 == 0) return use(uint16_t{});
  return use(uint8_t{});
}

}  // namespace

std::string launch(const CopyBytes& x) {
  const uint64_t all = uint64_t(x.from) | uint64_t(x.to) | uint64_t(x.row_bytes) |
                       uint64_t(x.from_stride_bytes) | uint64_t(x.to_stride_bytes);
  return with_unit(all, [&]<typename Unit>(Unit) {
    const int64_t blocks = blocks_for_each(x.rows * x.row_bytes / int64_t(sizeof(Unit)));
    return run(copy_bytes_kernel<Unit>, {blocks, kEachThreads, 0}, x);
  });
}

std::string launch(const GatherRows& x) {
  const uint64_t all = uint64_t(x.from) | uint64_t(x.to) | uint64_t(x.row_bytes);
  return with_unit(all, [&]<typename Unit>(Unit) {
    const int64_t blocks = blocks_for_each(x.rows * x.row_bytes / int64_t(sizeof(Unit)));
    return run(gather_rows_kernel<Unit>, {blocks, kEachThreads, 0}, x);
  });
}

std::string launch(const Fill& x) {
  const uint64_t all = uint64_t(x.to) | uint64_t(x.row_bytes) | uint64_t(x.stride_bytes);
  return with_unit(all, [&]<typename Unit>(Unit) -> std::string {
    if (int(sizeof(Unit)) < x.unit_bytes) return "Fill: elements at addresses that do not fit";
    const int64_t blocks = blocks_for_each(x.rows * x.row_bytes / int64_t(sizeof(Unit)));
    return run(fill_kernel<Unit>, {blocks, kEachThreads, 0}, x);
  });
}

std::string launch(const Convert& x) {
  const auto is_packed = [](const Elements& e) {
    return e.type == ElementType::kF32 || e.type == ElementType::kBF16;
  };
  if (is_packed(x.from) && is_packed(x.to)) {
    const int64_t packs = x.rows * ((x.width + kPack - 1) / kPack);
    return run(convert_packs_kernel, {blocks_for_each(packs), kEachThreads, 0}, x);
  }
  return run(convert_elements_kernel, {blocks_for_each(x.rows * x.width), kEachThreads, 0}, x);
}

std::string launch(const Scale& x) {
  return run(scale_kernel, {blocks_for_each(packs_of(x.n)), kEachThreads, 0}, x);
}

}  // namespace ashlar::device
