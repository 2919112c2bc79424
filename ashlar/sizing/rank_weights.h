// The weights of one rank in closed form: those that its stage holds, those that ZeRO moves for it,
// and those that the optimizer works on.
#pragma once

#include <array>

#include "ashlar/sizing/step_shape.h"

namespace ashlar::sizing {

// Parameters of the matrices of a whole block.
struct BlockWeights {
  double mixer = 0, mlp = 0;  // tp and tsp cut them
  double experts = 0;         // tp and ep cut them
  double router = 0;          // every rank has it
};
BlockWeights block_weights(const BlockSpec& block, double hidden);

// Weights that the same ranks add up and share: `ranks` of them, `stride` apart.
struct Unit {
  double numel = 0;  // of a rank
  int64_t ranks = 1, stride = 1;
};
// The units of a block: weights of all data ranks, those that tsp cuts, experts that ep divides.
std::array<Unit, 3> units_of(const StepShape& shape, const BlockWeights& block);

// The stage of a block: stages are as even as possible, the longer ones first (parallel/mesh.h).
int64_t stage_of(const StepShape& shape, int64_t block);

struct RankWeights {
  double root = 0;                // embedding, head and vectors of the stage
  double head = 0;                // that is packed for products; 0 where the stage has no loss
  double blocks = 0;              // matrices of the stage's blocks, on a rank
  double largest_block = 0;       // of one of them
  double kept = 0;                // elements that the optimizer of a rank works on
  double kept_matrices = 0;       // of these, elements of Muon's matrices
  double newton_schulz_flop = 0;  // of one step of the iteration, on a rank
  double exchanged = 0;           // elements of matrices that it receives
};
RankWeights rank_weights(const StepShape& shape, int64_t stage);

}  // namespace ashlar::sizing
