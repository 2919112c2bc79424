// Starts a run on its ranks, which are the processes that mpirun or srun started, or threads of
// this process, and trains.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "ashlar/comm/world.h"
#include "ashlar/train/loop.h"
#include "ashlar/train/placing.h"

namespace ashlar::train {

struct Start {
  int num_ranks = 1;  // threads of this process, which share its CPUs and its memory limit
  // Reports why a rank of many processes failed; MPI then ends them all with its exit code.
  std::function<void(std::string_view message)> report;
  std::optional<int64_t> from_step = std::nullopt;  // step to continue from; default: the newest
  bool supersede = false;  // set newer steps aside (checkpoint/root/rewind.h)
  // Takes lines about ranks for which others wait long, from any thread; may be null.  start_run
  // passes them to its log.
  std::function<void(std::string_view line)> tell = nullptr;
  StartTiming* timing = nullptr;  // told of the parts of the start; logged after the first step
  bool independent = false;       // this process is a run by itself, whatever launcher started it
  Binding binding = Binding::kCache;  // of threads to CPUs
};

// "self", "thread" or "mpi".
std::string_view engine_of(const Start& start);

// kConfig if num_ranks ranks in one process cannot share the recipe's work, or need another engine.
void check_ranks(const Recipe& recipe, int num_ranks);

// The settings of ranks, whatever they do.
struct RankSettings {
  int64_t threads = 0;           // of the kernels of a rank; 0: its share of the CPUs
  int64_t memory_limit_mib = 0;  // of the ranks of a machine together; 0: none
  comm::Options communication = {};
};

// Calls body on every rank, with its share of the CPUs and of the memory limit, on a thread that is
// bound to its place (placing.h).  The first failure of a rank ends all of them: among threads it
// is thrown; among processes one calls `report`, and none returns.
// Errors   those of body; kLaunch if a launcher started many processes that cannot find each other.
void start_ranks(const RankSettings& settings, const Start& start,
                 const std::function<void(const RankResources& resources)>& body);

// The same with the settings of a recipe, of which all processes must have the same.
// Errors   those of body; kConfig if that many ranks cannot share the batch; kLaunch if a launcher
//          started many processes that cannot find each other.
void start_ranks(const Recipe& recipe, const Start& start,
                 const std::function<void(const RankResources& resources)>& body);

// Trains on these ranks.  Errors of start_ranks and of run_training.
Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, const Start& start = {});

}  // namespace ashlar::train
