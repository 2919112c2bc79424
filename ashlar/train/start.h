// Puts a run on its ranks, which are the processes that mpirun or srun started, or threads of this
// one, and trains.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "ashlar/train/loop.h"

namespace ashlar::train {

struct Start {
  int num_ranks = 1;  // threads of this process, which share its CPUs and its memory limit
  // Tells why a rank of many processes failed; MPI then ends them all with its exit code.
  std::function<void(std::string_view message)> report;
  std::optional<int64_t> from_step = std::nullopt;  // to continue from, instead of the newest
  bool supersede = false;  // set newer steps aside (checkpoint/root/rewind.h)
  // Takes lines about ranks that others wait for long, from any thread; null: nothing.  start_run
  // hands them to its log.
  std::function<void(std::string_view line)> tell = nullptr;
};

// "self", "thread" or "mpi".
std::string_view engine_of(const Start& start);

// kConfig where so many ranks in one process cannot share the recipe's work, or need another
// engine.
void check_ranks(const Recipe& recipe, int num_ranks);

// Calls body on every rank, with its share of the CPUs and of train.memory_limit_mib.  The first
// failure of a rank ends all.  Of threads it is thrown; of processes `report` is called on one, and
// nothing returns.
// Errors   those of body; kConfig where so many ranks cannot share the batch; kLaunch where a
//          launcher started many processes that cannot find each other.
void start_ranks(const Recipe& recipe, const Start& start,
                 const std::function<void(const RankResources& resources)>& body);

// Trains on them.  Errors as start_ranks, and those of run_training.
Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, const Start& start = {});

}  // namespace ashlar::train
