// The checks of a start before it reads weights or data, which refuse or warn: memory, the time of
// a step, threads, and the disk.
#pragma once

#include <cstdint>
#include <string>

#include "ashlar/comm/group.h"
#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/loop.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/records/metrics.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

// The bytes that a rank takes: the plan's peak, and memory of the host for a step's ids and
// targets, which are read ahead, and for the losses of its tokens (parallel/losses.h).
int64_t rank_bytes(const RunPlan& plan, const Recipe& recipe, const ParallelSpec& parallel);

// "" if the rank stays within its share of train.memory_limit_mib, else the message.  local_ranks:
// the ranks that share the limit.
std::string memory_limit_problem(int64_t rank_bytes, const Recipe& recipe, int local_ranks);

// kMemory if a rank exceeds its share of train.memory_limit_mib, or if local_ranks ranks of mean
// size take more memory than this machine has.  All ranks call it.
void require_memory(int64_t rank_bytes, const Recipe& recipe, comm::Group& ranks, int local_ranks,
                    int64_t machine_bytes);

// kMemory if a micro-batch's stream between two blocks alone exceeds the memory of this machine.
// It needs no plan, which itself takes memory for every token of a micro-batch.
void require_least_memory(const Recipe& recipe, const ParallelSpec& parallel, DType compute,
                          int local_ranks, int64_t machine_bytes);

// "" unless a step takes half an hour or more, even at the peak that was measured.
std::string long_step_warning(const Recipe& recipe, double flop_per_token, double peak_flops);

// "" unless the threads of the ranks on this machine are more than its CPUs.
std::string threads_warning(int num_threads, int local_ranks, int num_cpus);

// kStorage, naming train.run_dir, unless this process can make files there.  Leaves nothing behind.
void require_writable(FileSystem& files, const Recipe& recipe);

// The plan of this rank, in a run whose memory suffices and whose directory can be written: the
// errors of the functions above, and of plan_run.  on: what it computes on, whose memory is meant.
// All ranks call it.
RunPlan accepted_plan(const Recipe& recipe, DType compute, FileSystem& files,
                      const RankResources& resources, const ComputeDevice& on = {});

// kMemory, with a table, unless the plan fits into the memory of the GPU beside what others take.
void require_gpu_memory(const RunPlan& plan, const DeviceSpec& spec);

// kStorage if a save would refuse to write even one checkpoint of that many bytes into the run's
// root; a warning if it would refuse one of those that are kept at once.
void check_room(FileSystem& files, const Recipe& recipe, int64_t checkpoint_bytes, Log& log);

// Logs the problems that do not stop a start.  scale: the run's, with its peak.
void warn_of_start(const Recipe& recipe, const RunScale& scale, int num_threads, int local_ranks,
                   int num_cpus, Log& log);

// The bytes of tensors in a checkpoint.
int64_t saved_bytes(const Trainer& trainer);

}  // namespace ashlar::train
