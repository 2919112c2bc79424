// What a rank does in a step, as data and in order: passes of micro-batches through its blocks and,
// in a pipeline (schedule.h), what it sends to its neighbours and receives from them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/nn/residency.h"
#include "ashlar/nn/share.h"

namespace ashlar::parallel {

// One action on the blocks of a chunk of this rank, or with a tensor of theirs.
struct Action {
  enum class Kind : uint8_t {
    kForward,
    kBackward,         // kInputs and kWeights in one
    kInputs,           // backward, but for products that only gradients of weights need
    kWeights,          // these products (nn/late_products.h)
    kSendForward,      // the chunk's output, to whoever has the blocks after it
    kReceiveForward,   // the chunk's input
    kSendBackward,     // the gradient of the chunk's input, to whoever has the blocks before it
    kReceiveBackward,  // the gradient of the chunk's output
  };
  Kind kind;
  int16_t chunk;  // of this rank's chunks; 0 where a rank has one
  int32_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

// All blocks stand on one rank, so each backward follows its forward at once.
std::vector<Action> one_stage(int64_t num_micro_batches);
// chunks: the blocks of each.  recompute: a block runs forward again before its backward, unless it
// is the one that ran last (nn::Keep::kBlockInput).
std::vector<nn::Use> uses_of(std::span<const Action> program,
                             std::span<const nn::BlockRange> chunks, bool recompute);

}  // namespace ashlar::parallel
