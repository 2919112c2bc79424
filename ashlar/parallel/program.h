// What a rank does in a step, as data: passes of micro-batches through its blocks, in their order.
// One stage holds all blocks, so each backward follows its forward at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/nn/residency.h"

namespace ashlar::parallel {

struct Action {
  enum class Kind : uint8_t { kForward, kBackward };
  Kind kind;
  int32_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

std::vector<Action> one_stage(int64_t num_micro_batches);
// Of units 1 .. num_blocks, a block each.  recompute: every block but the last runs forward again
// before its backward (nn::Keep::kBlockInput).
std::vector<nn::Use> uses_of(std::span<const Action> program, int64_t num_blocks, bool recompute);

}  // namespace ashlar::parallel
