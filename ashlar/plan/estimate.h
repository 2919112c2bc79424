// Layouts of a recipe side by side by the closed formulas of sizing: time, its parts, memory.
#pragma once

#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"
#include "ashlar/sizing/step_time.h"

namespace ashlar::plan {

struct EstimatedLayout {
  std::string keys;  // over the recipe's; "" for its own
  ParallelSpec parallel;
  sizing::StepTime time;
  sizing::MemoryEstimate memory;
  int64_t tokens = 0;        // of a step
  double training_flop = 0;  // of a token, exact-causal
  bool fits = true;          // into the memory of a device, if that is known
};

struct Estimate {
  std::string recipe;
  int64_t num_ranks = 0, ranks_per_node = 0;
  bool bf16 = true;
  double peak_flop = 0, sustained_flop = 0;  // of a rank, a second; 0: unknown
  double device_memory = 0;                  // 0: unknown
  std::vector<EstimatedLayout> layouts;
  std::vector<std::string> rests_on;  // keys of the profile
  double elapsed_s = 0;               // that the formulas took, for all layouts
};

struct EstimateOptions {
  std::vector<std::string> overrides;  // of every layout
  std::vector<std::string> layouts;    // "parallel.tp=2 train.micro_batch=2", ...; none: the recipe
  int64_t num_ranks = 1;
  int ranks_per_node = 0;  // 0: the devices of a node, or all ranks on CPUs
};
// Errors   kConfig: a layout that the trainer refuses, with its keys; a number that the profile
//          lacks.
Estimate estimate(FileSystem& files, const std::string& recipe, const MachineFile& machine,
                  const EstimateOptions& options);

std::string describe(const Estimate& estimate, const MachineFile& machine);
std::string to_json(const Estimate& estimate, const MachineFile& machine);

}  // namespace ashlar::plan
