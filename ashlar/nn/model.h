// A model, or a stage of it: embedding, blocks, final norm; forward and backward over one
// micro-batch.
//
//   x^0 = (Emb[id] + b_in) * a_in                or, without scaled residuals, Emb[id]
//   block l:  a = norm(x^l);  h = merge(mixer(a), x^l);
//             m = norm(h);    x^{l+1} = merge(feed_forward(m), h)
//   final = norm(x^L), which loss.h turns into logits
//
// With normed residuals, a and m are merged instead of x^l and h.
//
// A chunk of blocks [begin, end) reads x^begin and the carry of the block before, and makes x^end
// and its own carry.  Its backward reads the gradients of the latter and makes those of the former
// (Saved).
//
// Source   arXiv 2511.17127 and the release.
// Memory   weights, operands and gradients are laid out once; Saved is laid out for a number of
//          tokens.
#pragma once

#include <memory>
#include <vector>

#include "ashlar/nn/residency.h"
#include "ashlar/nn/weights.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::nn {

enum class Keep : uint8_t {
  kAll,         // everything that backward needs
  kBlockInput,  // the stream before each block, and carries; the rest is recomputed
  // The stream before each branch, whose backward recomputes the rest (Mode::kBackwardRecompute).
  // Not for scaled residuals.
  kBranchInputs,
  kNothing,  // inference
};

// The block, and its slot, that ran last in the memory that blocks share.
struct BlockInMemory {
  int64_t block = -1;
  int slot = -1;
  friend bool operator==(const BlockInMemory&, const BlockInMemory&) = default;
};

// The tensors that a chunk of blocks keeps of one micro-batch.  Lists have an entry for every block
// of the model, and tensors for the blocks of the chunk.
struct Saved {
  Keep keep;
  int slot;  // slot of the branches' memory
  BlockRange chunk;
  std::vector<Tensor> x{};      // [T, H] stream before block l; x[end] after the last
  std::vector<Tensor> rstd{};   // [T], of the norm that reads x[l]
  std::vector<Tensor> carry{};  // [T of a layer, R], Carry::in of block l; carry[end] leaves
  std::vector<BlockSaved> blocks{};
  Tensor final_TH{};      // normed x[L], in the last chunk only
  bool hands_on = false;  // whether a later chunk reads carry[end]
  // In a pipeline: the gradient of carry[end], then that of carry[begin].  The gradients of x[end]
  // and x[begin] are stored in x[end], which is no longer read.
  Tensor d_carry{};
  std::shared_ptr<BlockInMemory> in_memory{};  // with Keep::kBlockInput; shared by all slots

  Tensor d_stream() const { return x[size_t(chunk.end)]; }

  // Lays out the branches as well.
  static Saved make(Arena& arena, const ModelWeights& weights, const Types& types,
                    TokenCounts tokens, int64_t num_halos, Keep keep, int slot = 0);
};

// Memory for several micro-batches at a time: slots_of_chunk[c] slots for chunk c, by chunk, then
// by slot.  All slots share the memory of what is not kept.
std::vector<std::vector<Saved>> make_saved(Arena& arena, const ModelWeights& weights,
                                           const Types& types, TokenCounts tokens,
                                           int64_t num_halos, Keep keep,
                                           std::span<const int> slots_of_chunk, int first_slot = 0);

// The arguments that forward and backward share.
struct ModelCall {
  const Types& types;
  const ModelWeights& weights;
  Residency& residency;
  Exchanges exchanges;
  const kernels::Sequence& sequence;
  Tensor ids_T;                             // I32
  std::span<const Tensor> rope, log_decay;  // Pass::rope and log_decay_H, by block
  bool add_to_gradients = true;             // these three are for backward, as in Pass
  LateProducts* late = nullptr;
  StepLosses losses{};
  Pass at(int64_t block, int slot, Mode mode) const;
};

// Run the blocks of saved.chunk.
void forward(const kernels::Context&, const ModelCall&, const Saved&);
// dfinal: gradient of final_TH, absent if another chunk follows.  Adds to the gradients, or
// overwrites those of products (call.add_to_gradients).
void backward(const kernels::Context&, const ModelCall&, const Saved&, const Tensor& dfinal_TH);

// Whether a model holds the products of all blocks, or of two blocks at a time, block l in slot
// l % 2.  In the second case the owner fills the slot before a block runs, and takes the gradients
// away after it.
struct ModelMemory {
  bool weight_slots = false, operand_slots = false, gradient_slots = false;
  DType slot_dtype = DType::kF32;    // type of weight slots
  DType frozen_dtype = DType::kF32;  // type of frozen products, in fp64 F64
};

struct ModelOptions {
  bool training = true;  // with gradients, and packed for backward
  ModelMemory memory{};
  Share share{};    // the part of the model on this rank
  InitSpec init{};  // initial weights (init.h)
  TuneSpec tune{};
  StreamType stream = StreamType::kF32;
  // Number of tokens that a sequence starts with if it then grows token by token; 0: all tokens are
  // there from the start.  RoPE of type dynamic depends on it (kernels/rope.h).
  int64_t first_tokens = 0;
};

// Weights, gradients, operands and rotary tables with their memory, for a trainer or a sampler.
class Model {
 public:
  // max_positions bounds the positions inside a document.
  Model(const kernels::Context&, Allocator&, const ModelSpec& whole, DType compute,
        int64_t max_positions, const ModelOptions& options = {});
  Model(const Model&) = delete;

  const ModelSpec& spec() const { return weights_.spec; }  // spec of the whole model
  const Types& types() const { return types_; }
  const ModelMemory& memory() const { return memory_; }
  const ModelWeights& weights() const { return weights_; }
  const Weight& head() const { return weights_.head(); }
  void pack(const kernels::Context& ctx) const;  // all units and frozen tensors
  // After every change of its weights.  except: operands that were packed with the change.
  void pack(const kernels::Context& ctx, int64_t unit,
            std::span<const kernels::Operand* const> except = {}) const;
  // residency: brings weights before they are used; absent if all of them stay here.  All experts
  // are local; techniques put their own exchanges into the call.
  ModelCall call(const TokenExchanges&, const kernels::Sequence&, const Tensor& ids_T,
                 Residency* residency = nullptr);
  // To be called after frozen tensors were filled; no unit has them.
  void pack_frozen(const kernels::Context& ctx) const;
  // For techniques that put branches around branches, which they do once, before anything runs.
  ModelWeights& weights() { return weights_; }

  int64_t num_units() const { return int64_t(flat_.unit_numel.size()); }
  const FlatLayout& flat() const { return flat_; }
  // The memory of a unit as a vector.  If blocks use slots, it is the slot, which may hold another
  // block.
  Tensor unit_weights(int64_t unit) const;
  Tensor unit_gradients(int64_t unit) const;

  std::vector<Piece> pieces() const;  // weights and buffers by name; not for models with slots
  int64_t num_parameters() const;     // trained

 private:
  void take_weights(const kernels::Context&, Allocator&, bool training);
  void take_gradients(Allocator&);
  Types types_;
  ModelMemory memory_;
  ModelWeights weights_;
  FlatLayout flat_;
  std::vector<const Weight*> first_of_unit_;
  std::vector<std::vector<const kernels::Operand*>> operands_of_unit_;
  std::vector<const kernels::Operand*> frozen_operands_;
  Arena weight_arena_;
  std::vector<Arena> weight_slots_, operand_slots_;
  Arena gradient_arena_;
  std::vector<Arena> gradient_slots_;
  Arena table_arena_;
  std::vector<Tensor> rope_;       // by block; blocks of one RoPE share a table
  std::vector<Tensor> log_decay_;  // by block; absent where decays are not fixed
  Residency all_here_;
  ExpertExchange local_experts_;
};

}  // namespace ashlar::nn
