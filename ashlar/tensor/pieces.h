// Parameters as boxes of logical tensors, as a checkpoint reads and writes them.
#pragma once

#include <span>
#include <vector>

#include "ashlar/tensor/logical.h"

namespace ashlar {

// The elements that this rank keeps of a parameter: its values, or one of its moments.
struct KeptTensor {
  const Parameter* parameter;
  LogicalTensor named;
  Tensor data;
};

// The elements as boxes that are each contiguous in `data`, in element order; tensor after tensor.
std::vector<Piece> pieces_of(const KeptTensor& kept);
std::vector<Piece> pieces_of(std::span<const KeptTensor> kept);

// The part of them that this rank writes, in as few boxes as possible: boxes that are neighbours in
// the tensor are joined, with strides where memory has gaps between them.
//
// If several ranks keep the same elements, each writes a part, so that every element is written
// once.  All tensors that the same ranks keep form one row, in the order of the list.  even_cuts
// (cuts.h) cuts the row by bytes into as many parts as there are ranks, or fewer if parts would be
// smaller than kMinPartBytes.  So a writer has a few whole tensors instead of a sliver of each.
// All of these ranks must call it with lists of the same tensors.
inline constexpr int64_t kMinPartBytes = int64_t(4) << 20;
std::vector<Piece> pieces_to_write(std::span<const KeptTensor> kept);

}  // namespace ashlar
