// The values that the time and memory of a step depend on: a model, a layout, and a batch.
#pragma once

#include <cstdint>

#include "ashlar/spec/recipe.h"

namespace ashlar::sizing {

// The type of the residual stream, of gradients and of sums: fp32.
inline constexpr double kStreamBytes = 4;

struct StepShape {
  ModelSpec model;        // whole
  ParallelSpec parallel;  // resolved
  int64_t micro_batch = 1, global_batch = 1, sequence_length = 1;
  bool recompute = false;
  bool bf16 = true;  // products; else fp32
  MatrixOptimizer matrices = MatrixOptimizer::kMuon;
  int64_t muon_steps = 5;

  int64_t micro_batches() const { return global_batch / micro_batch / parallel.dp; }
  int64_t tokens() const { return global_batch * sequence_length; }
};
StepShape step_shape(const Recipe& recipe, const ParallelSpec& resolved, bool bf16);

}  // namespace ashlar::sizing
