// ZAYA1 whole: embedding, blocks, final norm; forward and backward over one micro-batch.
//
//   x^0 = (Emb[id] + b_in) * a_in
//   block l:  a = norm(x^l);  h = merge(attention(a), x^l);
//             m = norm(h);    x^{l+1} = merge(experts(m), h)
//   final = norm(x^L), which loss.h turns into logits
//
// Source   arXiv 2511.17127 and the release.
// Memory   weights, operands and gradients are laid out once; Saved is laid out for a number of
//          tokens.
#pragma once

#include <vector>

#include "ashlar/nn/block.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::nn {

struct ModelWeights {
  Tensor embed;                    // [V, H], head too
  Tensor input_scale, input_bias;  // [H]
  std::vector<BlockWeights> blocks;
  Tensor norm;  // [H]

  // Lays out the units (below): the root in `root`, the products of block l in products(l).  Where
  // that is another arena than root, each block begins where the arena stands: blocks that share an
  // arena share memory.  buffers false: gradients, which have none.
  static ModelWeights make(Arena& root, function_ref<Arena&(int64_t layer)> products,
                           const ModelSpec& spec, DType dtype, DType product_dtype, bool buffers);
  // Everything in one arena, unit after unit.
  static ModelWeights make(Arena& arena, const ModelSpec& spec, DType dtype, bool buffers);
  void for_each(const ModelSpec& spec, Visitor visit) const;
};

// Trained tensors lie in units, each one range of memory: unit 0, the root, holds the embedding, the
// final norm and the vectors of all blocks; unit l + 1 the products of block l, nearly all of it.  What
// ranks gather, free and reduce at once is a unit.
struct FlatPlace {
  int64_t unit, offset, numel;  // in elements, inside the unit
};
struct FlatLayout {
  std::vector<int64_t> unit_numel;  // gaps between tensors included
  std::vector<FlatPlace> places;    // of the trained tensors, in visiting order
};
FlatLayout flat_layout(const ModelSpec& spec, DType dtype);

struct ModelOperands {
  kernels::Operand head;
  std::vector<BlockOperands> blocks;
  // blocks: as in ModelWeights.  for_backward false: inference needs fewer packed forms.
  static ModelOperands make(const kernels::Context&, Arena& root,
                            function_ref<Arena&(int64_t layer)> blocks, const ModelSpec& spec,
                            const Types& types, const ModelWeights& weights, bool for_backward);
  void pack(const kernels::Context&, int64_t unit) const;  // after every change of the weights
};

enum class Keep : uint8_t {
  kAll,         // everything that backward needs
  kBlockInput,  // the stream and router state before each block; the rest is recomputed
  kNothing,     // inference
};

struct Saved {
  Keep keep;
  std::vector<Tensor> x;     // [T, H] stream before block l; x[L] after the last
  std::vector<Tensor> rstd;  // [T] of the norm that reads x[l]
  std::vector<BlockSaved> blocks;
  Tensor final_TH;  // normed x[L]

  static Saved make(Arena& arena, const ModelSpec& spec, const Types& types, TokenCounts tokens,
                    int64_t num_halos, Keep keep);
};

// What forward and backward share.
struct ModelCall {
  const ModelSpec& spec;
  const Types& types;
  const ModelWeights& weights;
  BlockRunner& runner;
  SequenceExchange& exchange;
  const kernels::Sequence& sequence;
  Tensor ids_T;               // I32
  Tensor rope, rope_sliding;  // [positions, rho]
  bool accumulate = true;     // of backward; see AttentionCall
  AttentionCall at(int64_t layer) const;
};

void forward(const kernels::Context&, const ModelCall&, const Saved&);
// dfinal: gradient of final_TH.  Adds to gradients (those of the blocks through the runner), but
// for what call.accumulate says.
void backward(const kernels::Context&, const ModelCall&, const Saved&, const Tensor& dfinal_TH,
              const ModelWeights& gradients);

// What of the blocks' products a model holds: of all blocks, or of two at a time, block l in slot
// l % 2 (then somebody fills the slots before a block runs, and takes the gradients away after).
struct ModelMemory {
  bool weight_slots = false, operand_slots = false, gradient_slots = false;
  DType slot_dtype = DType::kF32;  // of weight slots
};

// Weights, gradients, operands and rotary tables with their memory: what a trainer or a sampler
// holds.
class Model {
 public:
  // max_positions bounds the positions inside a document.  training: with gradients.
  Model(const kernels::Context&, Allocator&, const ModelSpec&, DType compute, int64_t max_positions,
        bool training, const ModelMemory& memory = {});
  Model(const Model&) = delete;

  const ModelSpec& spec() const { return spec_; }
  const Types& types() const { return types_; }
  const ModelMemory& memory() const { return memory_; }
  const ModelWeights& weights() const { return weights_; }
  const ModelWeights& gradients() const { return gradients_; }
  const ModelOperands& operands() const { return operands_; }
  const kernels::Operand& head() const { return operands_.head; }
  void pack(const kernels::Context& ctx) const;  // all units
  // runner: null runs the blocks here.
  ModelCall call(SequenceExchange&, const kernels::Sequence&, const Tensor& ids_T,
                 BlockRunner* runner = nullptr);
  BlockRunner& local_runner() { return runner_; }

  int64_t num_units() const { return int64_t(flat_.unit_numel.size()); }
  const FlatLayout& flat() const { return flat_; }
  // The memory of a unit as a vector; of a block with slots: its slot.
  Tensor unit_weights(int64_t unit) const;
  Tensor unit_gradients(int64_t unit) const;

  std::vector<Parameter> parameters() const;  // trained tensors, in visiting order; without slots
  std::vector<Piece> pieces() const;          // weights and buffers by name; without slots
  int64_t num_parameters() const;

 private:
  void take_weights(const kernels::Context&, Allocator&, bool training);
  void take_gradients(Allocator&);
  ModelSpec spec_;
  Types types_;
  ModelMemory memory_;
  FlatLayout flat_;
  Arena weight_arena_;
  std::vector<Arena> weight_slots_, operand_slots_;
  Arena gradient_arena_;
  std::vector<Arena> gradient_slots_;
  Arena table_arena_;
  ModelWeights weights_, gradients_;
  ModelOperands operands_;
  Tensor rope_, rope_sliding_;
  LocalRunner runner_;
};

// An arena of exactly the size that `lay_out(arena)` takes.
Arena arena_for(Allocator& allocator, Tag tag, function_ref<void(Arena&)> lay_out,
                int64_t align = Arena::kAlign);

}  // namespace ashlar::nn
