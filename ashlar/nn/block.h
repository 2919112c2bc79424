// One block: norm, mixer, merge, norm, feed-forward, merge.  The second merge is fused with the
// norm that follows it and so belongs to the model (forward.cpp).
#pragma once

#include <memory>

#include "ashlar/kernels/norm.h"
#include "ashlar/nn/branch.h"

namespace ashlar::nn {

// Of a scaled residual; without tensors of any other.
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

// A vector [H] that is applied to the stream.
ParameterInfo stream_vector(const LayerSpec& layer, const char* name, double value);

// The weight of a norm of the stream: with its offset it is born 1.
ParameterInfo norm_weight(const LayerSpec& layer, const char* name);

// How many tokens the stream has here, with norms and merges, and how many the layers see: more
// where the stream is shared with others, else the same.  Where sequences are shared, the chunks of
// states here and of all ranks (PassShape).
struct TokenCounts {
  int64_t stream, layer;
  int64_t num_chunks = 0, num_all_chunks = 0;
  TokenCounts(int64_t both) : stream(both), layer(both) {}
  TokenCounts(int64_t stream, int64_t layer) : stream(stream), layer(layer) {}
};

// What the model keeps of a block; what the branches keep is theirs.  T: tokens of the stream here.
struct BlockSaved {
  Tensor a;          // [T, H] activation: normed input of the mixer
  Tensor o, h;       // [T, H] stream: the mixer's output, the stream after the first merge
  Tensor m, rstd_m;  // [T, H] activation: normed input of the feed-forward; [T]
  Tensor e;          // [T, H] stream: the feed-forward's output
  // output: the memory of o and e where nobody reads them after the merge; else absent.  h comes
  // from an arena of its own, perhaps the same.
  static BlockSaved make(Arena& arena, Arena& arena_of_h, int64_t hidden_size, const Types& types,
                         int64_t num_tokens, const Tensor& output);
};

}  // namespace ashlar::nn
