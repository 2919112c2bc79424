// The work of a rank in a step, as data and in order: passes of micro-batches through its blocks
// and, in a pipeline (schedule.h), messages to and from its neighbours.
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
    kInputs,           // backward without the products that only gradients of weights need
    kWeights,          // these products (nn/late_products.h)
    kSendForward,      // the chunk's output, to the rank with the blocks after it
    kReceiveForward,   // the chunk's input
    kSendBackward,     // the gradient of the chunk's input, to the rank with the blocks before it
    kReceiveBackward,  // the gradient of the chunk's output
  };
  Kind kind;
  int16_t chunk;  // number among this rank's chunks
  int32_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

// The program of a rank that has all blocks: each backward follows its forward at once.
std::vector<Action> one_stage(int64_t num_micro_batches);
// The uses of blocks that a program makes.  chunks: the blocks of each chunk.  recompute: a block
// runs forward again before its backward, unless it ran last (nn::Keep::kBlockInput).
std::vector<nn::Use> uses_of(std::span<const Action> program,
                             std::span<const nn::BlockRange> chunks, bool recompute);

}  // namespace ashlar::parallel
