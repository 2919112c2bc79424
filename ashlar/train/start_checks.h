// What a start is refused for, or warned of, before it reads weights or data: memory, the time of a
// step, threads, and the disk.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/loop.h"
#include "ashlar/train/metrics.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

// Bytes that a rank takes: the plan's peak, and the ids and targets of a step, which are read ahead
// of it.
int64_t rank_bytes(const RunPlan& plan, const Recipe& recipe, const ParallelSpec& parallel);

// "" if the rank keeps within its share of train.memory_limit_mib, else the message.  local_ranks:
// those that share the limit.
std::string memory_limit_problem(int64_t rank_bytes, const Recipe& recipe, int local_ranks);

// kMemory if a rank passes its share of train.memory_limit_mib, or so many ranks like the mean take
// more memory than there is on this machine.  All ranks call it.
void require_memory(int64_t rank_bytes, const Recipe& recipe, comm::Group& ranks, int local_ranks,
                    int64_t machine_bytes);

// kMemory if the stream between two blocks alone, of a micro-batch, is more than there is on this
// machine.  It needs no plan, which takes memory for every token of a micro-batch itself.
void require_least_memory(const Recipe& recipe, const ParallelSpec& parallel, DType compute,
                          int local_ranks, int64_t machine_bytes);

// "" unless a step takes half an hour or more, even at the peak that was measured.
std::string long_step_warning(const Recipe& recipe, double flop_per_token, double peak_flops);

// "" unless the threads of the ranks on this machine are more than its CPUs.
std::string threads_warning(int num_threads, int local_ranks, int num_cpus);

// kStorage, naming train.run_dir, unless this process may make files there.  Leaves nothing behind.
void require_writable(FileSystem& files, const Recipe& recipe);

// The plan of this rank, in a run whose memory suffices and whose directory can be written: the
// errors of the functions above, and of plan_run.  All ranks call it.
RunPlan accepted_plan(const Recipe& recipe, DType compute, FileSystem& files,
                      const RankResources& resources);

// kStorage if a save would refuse to write even one checkpoint of so many bytes where the run has
// them; a warning if it would refuse one of those that stand there at once.
void check_room(FileSystem& files, const Recipe& recipe, int64_t checkpoint_bytes, Log& log);

// Logs what of this a start goes on in spite of.  scale: of the run, with its peak.
void warn_of_start(const Recipe& recipe, const RunScale& scale, int num_threads, int local_ranks,
                   int num_cpus, Log& log);

// Bytes of tensors in a checkpoint.
int64_t saved_bytes(const Trainer& trainer);

}  // namespace ashlar::train
