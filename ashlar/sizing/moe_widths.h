// Shapes of a mixture of experts with the parameters of a given model: E experts of width I, k of
// them a token, L blocks, so that total and active parameters stay within a tolerance.  Each is
// timed where it trains and where it generates, and those stay that no other beats in both.
//
//   training     seconds a token of one rank: all kernels of a step (block_time.h), the experts'
//                grouped products by tiles and waves with uneven loads
//   generating   bytes of the active weights over the bandwidth, and the launches of their kernels
//   loads        tau (1 + x), x even in +- sqrt(3) v: entropy 0.99 of an even load, v^2 = 0.02 ln E
//
// Source  ZAYA1, arXiv:2511.17127, which chose E 16, k 1 and I = H by training and generation
//         together; the procedure is this project's.
#pragma once

#include <cstdint>
#include <vector>

#include "ashlar/sizing/machine_rates.h"
#include "ashlar/sizing/step_shape.h"

namespace ashlar::sizing {

struct MixtureShape {
  int64_t experts = 0, chosen = 0, blocks = 0, width = 0;
  bool operator==(const MixtureShape&) const = default;
};

struct MoeWidthsOptions {
  double tolerance = 0.01;  // of total and of active parameters
  int64_t width_step = 64;
  int64_t least_blocks = 0, most_blocks = 0;  // 0: half of the model's, and twice
  int64_t expert_step = 4, most_experts = 512;
  std::vector<int64_t> chosen = {1, 2, 4, 8, 16};
};

// A place where models train or generate.
struct MoeTarget {
  MachineRates rates;
  int64_t compute_units = 0;  // 0: unknown, products fill it
  double launch_s = 0;        // of a kernel
};

struct MoeChoice {
  MixtureShape shape;
  double total = 0, active = 0;    // parameters; active with the head
  double train_s = 0;              // a token of one rank
  std::vector<double> generate_s;  // a token, by target
  std::vector<bool> on_front;      // by target: no other shape is as fast in both and faster in one
  std::vector<bool> fits;          // weights in bf16 into a device, by target
};

// The given model with another shape of its mixtures; its blocks are alike.
ModelSpec with_shape(const ModelSpec& model, const MixtureShape& shape);
MixtureShape shape_of(const ModelSpec& model);

// All shapes, those of the model first if it keeps to the steps; with `train` of one rank with
// micro_batch sequences of `base`.  Every target serves one token at a time.
std::vector<MoeChoice> moe_widths(const StepShape& base, const MoeTarget& train,
                                  const std::vector<MoeTarget>& serve,
                                  const MoeWidthsOptions& options);

}  // namespace ashlar::sizing
