// The step of a training run on a machine that is known by its profile: the programs of all ranks,
// replayed (sim/replay.h), with the times of that machine (sim/machine_costs.h).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/machine/kernel_table.h"
#include "ashlar/machine/profile.h"
#include "ashlar/sim/imbalance.h"
#include "ashlar/sim/replay.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/short_steps.h"

namespace ashlar::plan {

// A profile and the table of kernels beside it.
struct MachineFile {
  machine::Profile profile;
  std::vector<machine::TimedKernel> kernels;
};
// name: a file, or a name of machines/.
// Errors   kConfig, kStorage; kData: the table is not the one that the profile names.
MachineFile read_machine(FileSystem& files, const std::string& name);
// The recipe with parallel.bucket_bytes as a number: where it is "auto", by this machine, whatever
// train.machine names (sizing/bucket_bytes.h).
Recipe with_bucket_bytes(Recipe recipe, int64_t num_ranks, const MachineFile& machine,
                         int64_t ranks_per_node = 0);

struct SimulateOptions {
  sim::ImbalanceOptions imbalance;
  int ranks_per_node = 0;  // sim/machine_costs.h
  std::string engine;
  bool keep_spans = false;
};

struct SimulatedStep {
  sim::Replayed replayed;
  double step_s = 0, between_s = 0;
  int64_t tokens = 0;  // of a step; 0: unknown
  int num_ranks = 0, num_nodes = 0;
  std::vector<int> simulated;  // the ranks that have programs
  int num_steps = 0;           // replayed
  bool dry = false;
  double threads = 1;                                         // of a rank
  std::string engine;                                         // "": operations by the laws of links
  std::array<double, 3> kernel_shares{}, operation_shares{};  // by sim::TimeSource
  std::vector<std::string> by_law;              // kernels whose times are laws, longest first
  std::vector<std::string> notes;               // about assumptions
  std::optional<std::array<double, 2>> band_s;  // band.h
};

// The programs of a recipe's mesh, from dry runs of a few ranks.  lump: one rank of every share of
// the model stands for all others with that share; its shards, and the matrices that it updates,
// count for theirs.
// Errors   kConfig if num_ranks ranks cannot share the recipe (resolve_parallel).
sim::RankPrograms programs_of(const Recipe& recipe, DType compute, int num_ranks, Log& log,
                              bool lump = false);
// The programs in the trace files of a directory (sim/traces.h).
sim::RankPrograms programs_of(FileSystem& files, const std::string& directory, Log& log);

// Errors   kConfig: the machine lacks a number; the programs lock up.
SimulatedStep simulate_step(const sim::RankPrograms& programs, const MachineFile& machine,
                            const SimulateOptions& options);

// Makes of a simulated short step that of many micro-batches; `longer`: the second of the two that
// stand for it (train/short_steps.h).  The whole step has that many tokens.
void grow(SimulatedStep& step, const SimulatedStep& longer, const train::ShortSteps& steps,
          int64_t tokens);

// The timeline of a step whose spans were kept (sim/perfetto.h).
std::string perfetto_of(const sim::RankPrograms& programs, const SimulatedStep& step);
std::string describe(const SimulatedStep& step, const MachineFile& machine);
std::string to_json(const SimulatedStep& step, const MachineFile& machine);

}  // namespace ashlar::plan
