// Tensor parallelism: what of a model each of the tp ranks holds.  Attention is cut by key head
// with its query heads, the experts by width; everything else every rank has whole.
//
//   query heads    [r N/tp, (r+1) N/tp)
//   key heads      [r K/tp, (r+1) K/tp); where tp > K, head r K/tp, which tp/K ranks share
//   values         the columns of the key heads in the flat [current | delayed] of the whole model:
//                  a rank may hold one kind only
//   expert width   [r F/tp, (r+1) F/tp) of gate, of up and of down's columns
//
// A rank runs the layers of nn on a local ModelSpec; tensor_runner.h adds up what they leave
// partial.  docs/parallel-tensor.md has the whole picture.
#pragma once

#include <string_view>
#include <vector>

#include "ashlar/parallel/placement.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::parallel {

struct TensorPlace {
  int size = 1, rank = 0;  // along the tp axis
};

// The whole model cut for one rank.  Asserts what the recipe's rules promise: heads and width
// divide.  With p * m for skipped tokens (SkipOutput::kIdentity) rank 0 alone adds it.
ModelSpec local_spec(const ModelSpec& whole, TensorPlace at);
// How many ranks hold the same key head.
int num_key_sharers(const ModelSpec& local);

// A pure function; `name` and `local` as the visitor of the local model's weights gives them.  One
// placement, or two where ranks share keys and a tensor has both queries' and keys' channels.
std::vector<Placement> placements(const ModelSpec& whole, TensorPlace at, std::string_view name,
                                  const Shape& local);

// Whether a gradient is a partial sum over the tp ranks under parallel.sequence_parallel, where
// each runs norms, merges, embedding and head on its tokens only (tensor_sums.h adds them up).
bool partial_over_tp(std::string_view name);

}  // namespace ashlar::parallel
