// The values that the time and memory of a step depend on: a model, a layout, and a batch.
#pragma once

#include <cstdint>

#include "ashlar/sizing/tuning.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::sizing {

// The wide type, of gradients and of sums: fp32.  The residual stream has it by default.
inline constexpr double kStreamBytes = 4;

struct StepShape {
  ModelSpec model;        // whole
  ModelTuning tuning;     // what is trained of it
  ParallelSpec parallel;  // resolved
  int64_t micro_batch = 1, global_batch = 1, sequence_length = 1;
  bool recompute = false;
  bool bf16 = true;  // products; else fp32
  StreamType stream = StreamType::kF32;
  MatrixOptimizer matrices = MatrixOptimizer::kMuon;
  int64_t muon_steps = 5;
  bool aux_loss = false;  // of linear routers: cp ranks add up their loads

  int64_t micro_batches() const { return global_batch / micro_batch / parallel.dp; }
  int64_t tokens() const { return global_batch * sequence_length; }
  double stream_bytes() const { return stream == StreamType::kBF16 ? 2 : kStreamBytes; }
};
StepShape step_shape(const Recipe& recipe, const ParallelSpec& resolved, bool bf16);

}  // namespace ashlar::sizing
