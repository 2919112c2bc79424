// The tensors of a whole model: one list, and the memory of values, gradients and packed forms that
// follows from it.
#pragma once

#include <vector>

#include "ashlar/nn/block.h"

namespace ashlar::nn {

// The parts of a model: its layers, and the list of all their tensors.  Memory comes later.
struct ModelWeights {
  // share: the part that stands here.  init: what the list says of first weights.
  explicit ModelWeights(const ModelSpec& whole, const Share& share = {}, const InitSpec& init = {});
  ModelWeights(const ModelWeights&) = delete;  // the list points into it

  const ModelSpec spec;
  const Share share;
  Weight embed;                    // [V, H]
  Weight input_scale, input_bias;  // [H]; without tensors where the embedding is not scaled
  std::vector<Block> blocks;
  Weight norm;                  // [H]
  Weight own_head;              // [V, H]; without tensors where the head is the embedding
  std::vector<Stored> tensors;  // in the order in which forward meets them

  // Of all mixers together, which are alike in what they need at all.
  ExchangeNeeds needs() const;
  const Weight& head() const { return spec.tied_head ? embed : own_head; }
  // Every logical tensor of which a part is here; absent tensors before memory was laid out.
  void for_each(Visitor visit) const;
};

// Every logical tensor of a model, in the order of ModelWeights::tensors; buffers in F32 (or F64).
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, DType dtype = DType::kF32);

// Memory is ordered otherwise: tensors of no block; block by block the vectors of its branches,
// then those of the block; the products of every block; buffers.  Inside each of these the order is
// the list's.  It makes units: unit 0, the root, is embedding, head and the vectors of all blocks,
// unit l + 1 the products of block l, nearly all of it.  What ranks gather, free and reduce at once
// is a unit.
struct FlatRange {
  int64_t unit, offset, numel;  // in elements, inside the unit
};
struct FlatLayout {
  std::vector<int64_t> unit_numel;  // gaps between tensors included
  std::vector<FlatRange> ranges;    // of the trained tensors, in the order of for_each
};
FlatLayout flat_layout(const ModelSpec& whole, const Share& share, DType dtype);

// The arena that the products of a block go to.
using ArenaOfBlock = function_ref<Arena&(int64_t block)>;
// Takes the tensor `part` (value or gradient) of every Weight, in memory order.  Where products(l)
// is another arena than root, each block begins where the arena stands: blocks that share an arena
// share memory.  Buffers have no gradients.
void lay_out(const ModelWeights&, Tensor Weight::*part, Arena& root, ArenaOfBlock products,
             DType dtype, DType product_dtype);
// Takes the packed forms of values that were laid out; blocks: as products above.  for_backward
// false: inference needs fewer.
void lay_out_operands(const kernels::Context&, const ModelWeights&, Arena& root,
                      ArenaOfBlock blocks, const Types&, bool for_backward);

}  // namespace ashlar::nn
