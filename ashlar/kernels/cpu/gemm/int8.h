// Products that read weights of 8 bits: integers of -127 to 127 and a scale for each output column,
// w = scale * integer.  Packing picks the scale that makes the largest element of a row of w 127.
//
// Panels are an engine's, with a byte where it has an element.  The integers are exact in its type:
// a product sums as with weights that are these integers, then multiplies by the scales in fp32.
#pragma once

#include "ashlar/kernels/cpu/gemm/drive.h"

namespace ashlar::kernels::cpu::gemm {

// Both lie in one piece of memory: the panels of all groups, and from a whole line on the scales
// [G, N].
struct Int8Form {
  int64_t panel_size, group_size, scales_at, bytes;
  Int8Form(const Engine& engine, int64_t num_groups, int64_t N, int64_t K);
  const int8_t* panel(const std::byte* data, int64_t group, int64_t number) const {
    return reinterpret_cast<const int8_t*>(data) + group * group_size + number * panel_size;
  }
  const float* scales(const std::byte* data) const {
    return reinterpret_cast<const float*>(data + scales_at);
  }
};

// Rounds w [G, N, K], F32.
void pack_int8(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t N, int64_t K,
               const Tensor& w, std::byte* to);

// multiply() with such weights.
void multiply_int8(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N,
                   int64_t K, const Matrix& a, const std::byte* weights, const Matrix& c,
                   bool accumulate);

// The same integers as BF16 or F32.
void expand_int8(const int8_t* from, int64_t count, DType element, std::byte* to);

}  // namespace ashlar::kernels::cpu::gemm
