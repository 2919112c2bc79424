// The weights of one rank in closed form: those that its stage holds, those that ZeRO moves for it,
// and those that the optimizer works on.
#pragma once

#include <array>

#include "ashlar/sizing/step_shape.h"

namespace ashlar::sizing {

// Weights that the same ranks add up and share: `ranks` of them, `stride` apart.
struct Unit {
  double numel = 0;  // of a rank
  int64_t ranks = 1, stride = 1;
};
// The units of what is trained of a block: weights of all data ranks, those that tsp cuts, experts
// that ep divides.
std::array<Unit, 3> units_of(const StepShape& shape, const BlockTuning& block);

// The stage of a block: stages are as even as possible, the longer ones first (parallel/mesh.h).
int64_t stage_of(const StepShape& shape, int64_t block);

struct RankWeights {
  double root = 0;                // embedding, head, vectors and adapters of the stage
  double root_packed = 0;         // of these, head and adapters, which are packed for products
  double frozen_root = 0;         // tables and vectors that are not trained
  double frozen_head = 0;         // of these, the head
  double frozen = 0;              // matrices that are not trained, on a rank
  double blocks = 0;              // trained matrices of the stage's blocks, on a rank
  double largest_block = 0;       // of one of them
  double kept = 0;                // elements that the optimizer of a rank works on
  double kept_blocks = 0;         // of these, elements of blocks
  double kept_matrices = 0;       // of these, elements of Muon's matrices: no adapters
  double newton_schulz_flop = 0;  // of one step of the iteration, on a rank
  double exchanged = 0;           // elements of matrices that it receives
};
RankWeights rank_weights(const StepShape& shape, int64_t stage);

}  // namespace ashlar::sizing
