// A model, or a stage of it: embedding, blocks, final norm; forward and backward over one
// micro-batch.
//
//   x^0 = (Emb[id] + b_in) * a_in                or, without scaled residuals, Emb[id]
//   block l:  a = norm(x^l);  h = merge(mixer(a), x^l);
//             m = norm(h);    x^{l+1} = merge(feed_forward(m), h)
//   final = norm(x^L), which loss.h turns into logits
//
// Where residuals are normed, a and m are merged instead of x^l and h.
//
// A chunk of blocks [begin, end) is given x^begin and what the block before hands on, and gives
// x^end; backward is given their gradients there and gives those at its beginning (Saved).
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
  kAll,           // everything that backward needs
  kBlockInput,    // the stream before each block, and what blocks hand on; the rest is recomputed
  kBranchInputs,  // that before each branch, whose backward recomputes the rest
                  // (Mode::kBackwardRecompute); residuals not scaled
  kNothing,       // inference
};

// Which block ran last in the memory that blocks share, of which slot.
struct BlockInMemory {
  int64_t block = -1;
  int slot = -1;
  friend bool operator==(const BlockInMemory&, const BlockInMemory&) = default;
};

// What a chunk of blocks keeps of one micro-batch.  Lists are of the whole model, with tensors for
// the blocks of the chunk.
struct Saved {
  Keep keep;
  int slot;  // that of the branches' memory
  BlockRange chunk;
  std::vector<Tensor> x{};      // [T, H] stream before block l; x[end] after the last
  std::vector<Tensor> rstd{};   // [T] of the norm that reads x[l]
  std::vector<Tensor> carry{};  // [T of a layer, R] what block l is handed (Carry::in); carry[end]
  std::vector<BlockSaved> blocks{};
  Tensor final_TH{};      // normed x[L]; of the last chunk
  bool hands_on = false;  // carry[end], to a later chunk
  // Of a pipeline: the gradient of carry[end], then that of carry[begin].  Those of x[end] and
  // x[begin] stand in x[end], which nobody reads any more.
  Tensor d_carry{};
  std::shared_ptr<BlockInMemory> in_memory{};  // of Keep::kBlockInput; that of all slots

  Tensor d_stream() const { return x[size_t(chunk.end)]; }

  // Lays out the branches too.
  static Saved make(Arena& arena, const ModelWeights& weights, const Types& types,
                    TokenCounts tokens, int64_t num_halos, Keep keep, int slot = 0);
};

// Several micro-batches at a time: of chunk c so many slots, which share what nobody keeps.  By
// chunk, then by slot.
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
  bool add_to_gradients = true;             // of backward; see Pass
  LateProducts* late = nullptr;             // likewise
  StepLosses losses{};                      // likewise
  Pass at(int64_t block, int slot, Mode mode) const;
};

// The blocks of saved.chunk.
void forward(const kernels::Context&, const ModelCall&, const Saved&);
// dfinal: gradient of final_TH; absent where another chunk follows.  Adds to the gradients, but for
// what call.add_to_gradients says.
void backward(const kernels::Context&, const ModelCall&, const Saved&, const Tensor& dfinal_TH);

// Whether a model holds the products of all blocks, or of two at a time, block l in slot l % 2
// (then its owner fills the slots before a block runs, and takes the gradients away after).
struct ModelMemory {
  bool weight_slots = false, operand_slots = false, gradient_slots = false;
  DType slot_dtype = DType::kF32;  // of weight slots
};

struct ModelOptions {
  bool training = true;  // with gradients, and packed for backward
  ModelMemory memory{};
  Share share{};    // the part of the model that stands here
  InitSpec init{};  // of first weights (init.h)
  // Tokens of a sequence that are at hand at once, where it grows token by token after them; 0:
  // all.  RoPE of type dynamic depends on it (kernels/rope.h).
  int64_t first_tokens = 0;
};

// Weights, gradients, operands and rotary tables with their memory: what a trainer or a sampler
// holds.
class Model {
 public:
  // max_positions bounds the positions inside a document.
  Model(const kernels::Context&, Allocator&, const ModelSpec& whole, DType compute,
        int64_t max_positions, const ModelOptions& options = {});
  Model(const Model&) = delete;

  const ModelSpec& spec() const { return weights_.spec; }  // of the whole model
  const Types& types() const { return types_; }
  const ModelMemory& memory() const { return memory_; }
  const ModelWeights& weights() const { return weights_; }
  const Weight& head() const { return weights_.head(); }
  void pack(const kernels::Context& ctx) const;                // all units
  void pack(const kernels::Context& ctx, int64_t unit) const;  // after every change of its weights
  // residency: what brings weights before they are used; absent where all of them stay here.
  // Experts are exchanged with nobody; techniques put their exchanges into the call.
  ModelCall call(const TokenExchanges&, const kernels::Sequence&, const Tensor& ids_T,
                 Residency* residency = nullptr);
  // For techniques that put branches around branches, once, before anything runs.
  ModelWeights& weights() { return weights_; }

  int64_t num_units() const { return int64_t(flat_.unit_numel.size()); }
  const FlatLayout& flat() const { return flat_; }
  // The memory of a unit as a vector; of a block with slots: its slot, which another block may
  // hold.
  Tensor unit_weights(int64_t unit) const;
  Tensor unit_gradients(int64_t unit) const;

  std::vector<Piece> pieces() const;  // weights and buffers by name; without slots
  int64_t num_parameters() const;

 private:
  void take_weights(const kernels::Context&, Allocator&, bool training);
  void take_gradients(Allocator&);
  Types types_;
  ModelMemory memory_;
  ModelWeights weights_;
  FlatLayout flat_;
  std::vector<const Weight*> first_of_unit_;
  std::vector<std::vector<const kernels::Operand*>> operands_of_unit_;
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
