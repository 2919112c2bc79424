// Data by which a collective is checked, element by element.
//
// Element i of rank r's contribution is v 2^e.  The exponent e depends on i alone, and v is an
// integer such that the sum of |v| over all ranks fits the significand of the type: every partial
// sum is exact, so that any order of additions gives the same bits and every wrong element counts.
// Integers have any bits, and their sums wrap.  (The same principle as the verifiable data of
// nccl-tests.)
#pragma once

#include <cstdint>

#include "ashlar/tensor/tensor.h"

namespace ashlar::bench {

// Types that collectives are measured with: F32, BF16, F64, I32, U8.
bool has_exact_data(DType dtype);

// The data of one collective on so many ranks.
struct ExactData {
  uint64_t seed = 1;
  int64_t num_ranks = 1;

  // Sets tensor[i] to element first + i of this rank's contribution.
  void fill(const Tensor& tensor, int64_t rank, int64_t first = 0) const;
  // Counts elements that are not what that rank contributed, or not the sum over all ranks.
  int64_t num_wrong_copies(const Tensor& got, int64_t rank, int64_t first = 0) const;
  int64_t num_wrong_sums(const Tensor& got, int64_t first = 0) const;
};

}  // namespace ashlar::bench
