// The tensors of a whole model as one list, and the memory of values, gradients and packed forms
// that follows from it.
#pragma once

#include <vector>

#include "ashlar/nn/block.h"

namespace ashlar::nn {

// The layers of a model, and the list of all their tensors.  Memory is laid out later.
struct ModelWeights {
  // share: the part on this rank.  init: the rules of initial weights that the list takes.  tune:
  // the tensors that are frozen, and the adapters, which are part of the list (lora.h).
  explicit ModelWeights(const ModelSpec& whole, const Share& share = {}, const InitSpec& init = {},
                        const TuneSpec& tune = {});
  ModelWeights(const ModelWeights&) = delete;  // the list points into it

  const ModelSpec spec;
  const Share share;
  Weight embed;                    // [V, H]
  Weight input_scale, input_bias;  // [H]; without tensors where the embedding is not scaled
  std::vector<Block> blocks;    // of the whole model; without branches where another stage has them
  Weight norm;                  // [H]
  Weight own_head;              // [V, H]; without tensors where the head is the embedding
  std::vector<Stored> tensors;  // in the order in which forward meets them

  // The needs of all mixers together: the largest strips; and keys and states, which all mixers
  // that have them have alike.
  ExchangeNeeds needs() const;
  const Weight& head() const { return spec.tied_head ? embed : own_head; }
  // Calls use(block, its number) for every block on this rank.
  void for_each_block(function_ref<void(Block& block, int64_t number)> use);
  void for_each_block(function_ref<void(const Block& block, int64_t number)> use) const;
  // Visits every logical tensor of which a part is here; its data are absent before memory is laid
  // out.
  void for_each(Visitor visit) const;
};

// Every logical tensor of a model without adapters, in the order of ModelWeights::tensors; buffers
// in F32 (or F64).
std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, DType dtype = DType::kF32);

// Memory has another order: tensors of no block; for each block the vectors of its branches, then
// the block's own; the products of every block; buffers and frozen tensors.  Inside each of these
// groups the order is that of the list.
//
// A unit is what ranks gather, free and reduce at once; buffers and frozen tensors are in none.
// Unit 0, the root, is the embedding, the head, and all vectors and adapters but those of experts.
// The units of block 0, 1, ... follow: the products of a block, which are nearly all of it, are one
// unit, or several if different ranks share them (UnitSplit).  A split embedding is the last unit.
// Units of blocks on another stage are empty.
enum class UnitKind : uint8_t { kRoot, kBlock, kHeads, kWidths, kExperts, kEmbedding };
struct Units {
  int64_t num_blocks;
  UnitSplit split;
  int64_t per_block() const { return split.per_block(); }
  int64_t size() const { return 1 + num_blocks * per_block() + split.embedding; }
  int64_t first_of(int64_t block) const { return 1 + block * per_block(); }
  bool of_block(int64_t unit) const { return unit > 0 && unit <= num_blocks * per_block(); }
  int64_t block_of(int64_t unit) const { return (unit - 1) / per_block(); }
  // With CutUnits::kOne the unit of kind kHeads also holds the tensors cut by width.
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
FlatLayout flat_layout(const ModelSpec& whole, const Share& share, DType dtype,
                       const TuneSpec& tune = {});

// The list in memory order.
std::vector<const Stored*> in_memory_order(const ModelWeights& weights);

// The arena that holds the products of a block.
using ArenaOfBlock = function_ref<Arena&(int64_t block)>;
// The types of values or gradients in memory.
struct MemoryTypes {
  DType usual, products, frozen_products;
};
// Takes memory for the tensor `part` (value or gradient) of every Weight, in memory order.  Where
// products(l) is not the root arena, each block starts at the arena's current position, so blocks
// with the same arena share memory.  Frozen products are in the root arena.  Which Weights have
// gradients: see Weight.
void lay_out(const ModelWeights&, Tensor Weight::*part, Arena& root, ArenaOfBlock products,
             const MemoryTypes& types);
// Takes memory for the packed forms of values that were laid out; blocks: as `products` above.
// Inference (for_backward false) needs fewer.
void lay_out_operands(const kernels::Context&, const ModelWeights&, Arena& root,
                      ArenaOfBlock blocks, const Types&, bool for_backward);

}  // namespace ashlar::nn
