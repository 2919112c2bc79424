// Parameters as boxes of logical tensors: what a checkpoint reads and writes of them.
#pragma once

#include <span>
#include <vector>

#include "ashlar/tensor/logical.h"

namespace ashlar {

// The elements that this rank keeps of a parameter, its values or a moment of it.
struct KeptTensor {
  const Parameter* parameter;
  LogicalTensor named;
  Tensor data;
};

// As boxes that are each contiguous in `data`, in element order.  Of several: one after another.
std::vector<Piece> pieces_of(const KeptTensor& kept);
std::vector<Piece> pieces_of(std::span<const KeptTensor> kept);

// What this rank writes of them, in as few boxes as can be: boxes that are neighbours in the tensor
// are one, with strides where memory has gaps between them.
//
// Of what several ranks keep each writes a part, so that every element is written once: what the
// same ranks keep is one row of tensors in the order of the list, which even_cuts (cuts.h) cuts by
// bytes into as many parts as there are ranks, or fewer where parts would pass below kMinPartBytes.
// So a writer has a few whole tensors, and not a sliver of each.  All of these ranks must call it
// with lists of the same tensors.
inline constexpr int64_t kMinPartBytes = int64_t(4) << 20;
std::vector<Piece> pieces_to_write(std::span<const KeptTensor> kept);

}  // namespace ashlar
