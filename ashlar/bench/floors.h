// The floors of a step's calls: times that no call of this run can beat.
//
//   floor of a call = max(flop / rate of the best product of its class,
//                         bytes / rate of memory at so many bytes)
//
// Products  every shape of a class is measured alone, in all three directions (forward and both
//           gradients), before and after the timed steps; the class has the best rate of them and
//           of its products in the steps themselves.  Attention, recurrences and Newton-Schulz are
//           compared with plain products of their matrices, whose other work counts for nothing.
// Memory    the faster of copy (with write-allocate: three arrays for two) and add in place, in
//           loops over arrays that a call of so many bytes would have.  Small ones stay in the
//           caches, as the operands of a call may, and large ones in none.
#pragma once

#include <array>
#include <compare>
#include <string_view>
#include <vector>

#include "ashlar/core/threads.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::bench {

enum class ProductClass : uint8_t {
  kDense,          // linear_* with N and K of at least 128
  kNarrow,         // other linear_*
  kGrouped,        // grouped_linear_*: experts
  kBlockDiagonal,  // blockdiag_linear_*
  kHeads,          // attention_*: scores and values of a head
  kStates,         // recurrence_*, unmasked_*: 64 tokens and the state of a head
  kNewtonSchulz,   // orthogonalize: m x n x m and m x m x n
  kNone,           // any other call: its flop are compared with the peak of the registers
};
inline constexpr size_t kNumProductClasses = size_t(ProductClass::kNone);
std::string_view name_of(ProductClass);
// Whether its calls are products themselves.
inline bool is_product(ProductClass kind) {
  return kind <= ProductClass::kBlockDiagonal;
}
ProductClass class_of(std::string_view op, const TraceDims& dims);

// y [T, N] = x [T, K] W^T of G weights, each of which has T / G of the rows, or own columns of all.
struct ProductShape {
  int64_t G, T, N, K;
  bool own_columns = false;
  double flop() const { return 2.0 * double(T * N * K) * double(own_columns ? G : 1); }
  auto operator<=>(const ProductShape&) const = default;
};
// The products that a call of the class consists of, or is compared with.
std::vector<ProductShape> products_of(ProductClass, const TraceDims& dims);

struct MemoryRates {
  struct Rate {
    int64_t bytes;  // of a call
    double bytes_per_s;
  };
  std::vector<Rate> list;         // ascending in bytes
  double at(double bytes) const;  // of the largest size up to this
  double outside_caches() const { return list.back().bytes_per_s; }
};

struct Floors {
  double peak_flops = 0;
  std::array<double, kNumProductClasses> flops{};  // 0: not measured
  MemoryRates memory;

  double flops_of(ProductClass) const;                       // the peak where none was measured
  double of(ProductClass, double flop, double bytes) const;  // seconds
  double outside_caches(ProductClass, double flop, double bytes) const;  // if none held operands
  void raise(const Floors& other);  // to the better rate of both
  void raise(const Trace& trace);   // by the products of a step
  std::string text() const;         // one line
};

// The shapes of each class to measure, those with the most flop in a step.
using ClassShapes = std::array<std::vector<ProductShape>, kNumProductClasses>;
ClassShapes shapes_of(const Trace& trace);

Floors measure_floors(Threads& threads, DType compute, const ClassShapes& shapes);
// most_bytes: of the largest call.
MemoryRates measure_memory(Threads& threads, int64_t most_bytes = int64_t{1} << 28);
// Flop per second of the best of the three directions.
double measure_product(Threads& threads, DType compute, const ProductShape& shape);

}  // namespace ashlar::bench
