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
  std::vector<Block> blocks;    // of the whole model; without branches where another stage has them
  Weight norm;                  // [H]
  Weight own_head;              // [V, H]; without tensors where the head is the embedding
  std::vector<Stored> tensors;  // in the order in which forward meets them

  // Of all mixers together, which are alike in what they need at all.
  ExchangeNeeds needs() const;
  const Weight& head() const { return spec.tied_head ? embed : own_head; }
  // Calls use(block, its number) for the blocks that stand here.
  void for_each_block(function_ref<void(Block& block, int64_t number)> use);
  void for_each_block(function_ref<void(const Block& block, int64_t number)> use) const;
  // Every logical tensor of which a part is here; absent tensors before memory was laid out.
  void for_each(Visitor visit) const;
};

// Every logical tensor of a model, in the order of ModelWeights::tensors; buffers in F32 (or F64).
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, DType dtype = DType::kF32);

// Memory is ordered otherwise: tensors of no block; block by block the vectors of its branches,
// then those of the block; the products of every block; buffers.  Inside each of these the order is
// the list's.  It makes units: unit 0, the root, is embedding, head and the vectors of all blocks,
// then come those of block 0, 1, ...: the products of a block, nearly all of it, are one unit, or
// several where they are not shared alike (UnitSplit).  A split embedding is the last unit.  Units
// of blocks that another stage has are empty.  What ranks gather, free and reduce at once is a
// unit.
enum class UnitKind : uint8_t { kRoot, kBlock, kHeads, kWidths, kExperts, kEmbedding };
struct Units {
  int64_t num_blocks;
  UnitSplit split;
  int64_t per_block() const { return split.per_block(); }
  int64_t size() const { return 1 + num_blocks * per_block() + split.embedding; }
  int64_t first_of(int64_t block) const { return 1 + block * per_block(); }
  bool of_block(int64_t unit) const { return unit > 0 && unit <= num_blocks * per_block(); }
  int64_t block_of(int64_t unit) const { return (unit - 1) / per_block(); }
  // kHeads: with CutUnits::kOne the unit holds what is cut by width too.
  UnitKind kind_of(int64_t unit) const;
};
struct FlatRange {
  int64_t unit, offset, numel;  // in elements, inside the unit
};
struct FlatLayout {
  Units units;
  std::vector<int64_t> unit_numel;  // gaps between tensors included
  std::vector<FlatRange> ranges;    // of the trained tensors, in the order of for_each
};
FlatLayout flat_layout(const ModelSpec& whole, const Share& share, DType dtype);

// In memory order.
std::vector<const Stored*> in_memory_order(const ModelWeights& weights);

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
