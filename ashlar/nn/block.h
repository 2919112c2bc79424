// One block: norm, mixer, merge, norm, feed-forward, merge.  The second merge is fused with the
// norm that follows it, so the model runs it (forward.cpp).
#pragma once

#include <memory>

#include "ashlar/kernels/norm.h"
#include "ashlar/nn/branch.h"

namespace ashlar::nn {

// Weights of a scaled residual; other residuals have no tensors.
struct MergeWeights {
  Weight hidden_scale, hidden_bias, residual_scale, residual_bias;  // [H]
  void list(const LayerSpec& layer, StoredVisitor visit);
  kernels::MergeParams params() const;
  kernels::MergeParams gradients() const;
};

struct Block {
  Weight mixer_norm, feed_forward_norm;  // [H]
  std::unique_ptr<Branch> mixer, feed_forward;
  MergeWeights mixer_merge, feed_forward_merge;
  void list(const LayerSpec& layer, StoredVisitor visit);
};

// Describes a vector [H] that is applied to the stream.
ParameterInfo stream_vector(const LayerSpec& layer, const char* name, double value);

// Describes the weight of a norm of the stream, which starts as 1 with its offset added.
ParameterInfo norm_weight(const LayerSpec& layer, const char* name);

// The number of tokens of the stream on this rank, which norms and merges use, and the number that
// layers see, which is larger if ranks share the stream.  If ranks share sequences, also the chunks
// of states here and on all ranks (PassShape).
struct TokenCounts {
  int64_t stream, layer;
  int64_t num_chunks = 0, num_all_chunks = 0;
  TokenCounts(int64_t both) : stream(both), layer(both) {}
  TokenCounts(int64_t stream, int64_t layer) : stream(stream), layer(layer) {}
};

// The tensors that the model itself keeps of a block; branches keep others.  T: tokens of the
// stream here.
struct BlockSaved {
  Tensor a;          // [T, H] activation: normed input of the mixer
  Tensor o;          // [T, H] activation: the mixer's output
  Tensor h;          // [T, H] stream, after the first merge
  Tensor m, rstd_m;  // [T, H] activation: normed input of the feed-forward; [T]
  Tensor e;          // [T, H] activation: the feed-forward's output
  // output: the memory of o and e if only the merge reads them, else absent.  h comes from
  // arena_of_h, which may be the same arena.
  static BlockSaved make(Arena& arena, Arena& arena_of_h, int64_t hidden_size, const Types& types,
                         int64_t num_tokens, const Tensor& output);
};

}  // namespace ashlar::nn
