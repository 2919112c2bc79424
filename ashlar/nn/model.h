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

  // buffers false: gradients, which have none.
  static ModelWeights make(Arena& arena, const ModelSpec& spec, DType dtype, bool buffers);
  void for_each(const ModelSpec& spec, Visitor visit) const;
};

struct ModelOperands {
  kernels::Operand head;
  std::vector<BlockOperands> blocks;
  // for_backward false: inference needs fewer packed forms.
  static ModelOperands make(const kernels::Context&, Arena& arena, const ModelSpec& spec,
                            const Types& types, const ModelWeights& weights, bool for_backward);
  void pack(const kernels::Context&) const;  // after every change of the weights
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

  static Saved make(Arena& arena, const ModelSpec& spec, const Types& types, int64_t num_tokens,
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
  bool accumulate = true;     // see AttentionCall
  AttentionCall at(int64_t layer) const;
};

void forward(const kernels::Context&, const ModelCall&, const Saved&);
// dfinal: gradient of final_TH.  Adds to gradients (those of the blocks through the runner), but
// for what call.accumulate says.
void backward(const kernels::Context&, const ModelCall&, const Saved&, const Tensor& dfinal_TH,
              const ModelWeights& gradients);

// Weights, gradients, operands and rotary tables with their memory: what a trainer or a sampler
// holds.
class Model {
 public:
  // max_positions bounds the positions inside a document.  training: with gradients.
  Model(const kernels::Context&, Allocator&, const ModelSpec&, DType compute, int64_t max_positions,
        bool training);
  Model(const Model&) = delete;

  const ModelSpec& spec() const { return spec_; }
  const Types& types() const { return types_; }
  const ModelWeights& weights() const { return weights_; }
  const ModelWeights& gradients() const { return gradients_; }
  const kernels::Operand& head() const { return operands_.head; }
  void pack(const kernels::Context& ctx) const { operands_.pack(ctx); }
  ModelCall call(SequenceExchange&, const kernels::Sequence&, const Tensor& ids_T,
                 bool accumulate = true);
  // All gradients as one vector of the stream type: the arena that they lie in, gaps included.
  Tensor flat_gradients() const { return gradient_arena_.whole(types_.stream); }
  // The gradients that backward adds to even without accumulate: a step zeroes them first.
  const std::vector<Tensor>& sums() const { return sums_; }

  std::vector<Parameter> parameters() const;  // trained tensors, in visiting order
  std::vector<Piece> pieces() const;          // weights and buffers by name
  int64_t num_parameters() const;

 private:
  ModelSpec spec_;
  Types types_;
  Arena weight_arena_, gradient_arena_, table_arena_;
  ModelWeights weights_, gradients_;
  std::vector<Tensor> sums_;
  ModelOperands operands_;
  Tensor rope_, rope_sliding_;
  LocalRunner runner_;
};

// An arena of exactly the size that `lay_out(arena)` takes.
Arena arena_for(Allocator& allocator, Tag tag, function_ref<void(Arena&)> lay_out);

}  // namespace ashlar::nn
