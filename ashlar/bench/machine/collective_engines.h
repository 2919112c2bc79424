// The implementations of collectives that are measured side by side, each with its group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ashlar/bench/machine/collectives.h"

namespace ashlar::bench {

struct EngineOfGroup {
  CollectiveEngine kind = CollectiveEngine::kRanks;
  std::string name;                    // "mpi", "mpi-native", "thread"
  std::unique_ptr<comm::Group> group;  // null: this rank only waits
};

// Every rank calls it.  kConfig for an engine that these ranks cannot have.
std::vector<EngineOfGroup> engines_of(const Rig& rig, const CollectiveOptions& options,
                                      function_ref<comm::SplitKey(int rank)> key_of);

// Calls `body` on as many ranks as `rig` has, which are threads of this process and may run on the
// CPUs of all ranks of this machine.  The other processes wait meanwhile: every rank calls it.
void on_threads(const Rig& rig, function_ref<void(comm::Group& group)> body);

}  // namespace ashlar::bench
