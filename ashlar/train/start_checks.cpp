#include "ashlar/train/start_checks.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/comm/agree.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/core/process.h"
#include "ashlar/core/text.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

constexpr const char* kLessMemory =
    "choose a smaller train.micro_batch or data.sequence_length, train.recompute=true, or more "
    "ranks that share the state";

// The path itself if it exists, else its nearest parent that exists.
std::string nearest_there(FileSystem& files, std::string path) {
  while (!files.stat(path, LinkPolicy::kFollow) && parent_of(path) != path) path = parent_of(path);
  return path;
}

[[noreturn]] void fail_memory(const std::string& taken, int local_ranks, int64_t machine_bytes) {
  ASHLAR_FAIL(kMemory, "the run takes {} on this machine ({}), which has {}; {}", taken,
              local_ranks == 1 ? "1 rank" : fmt::format("{} ranks", local_ranks),
              format_bytes(machine_bytes), kLessMemory);
}

}  // namespace

int64_t rank_bytes(const RunPlan& plan, const Recipe& recipe, const ParallelSpec& parallel) {
  const int64_t tokens = recipe.train.global_batch / parallel.dp * recipe.data.sequence_length;
  return plan.memory.total.peak_bytes + tokens * int64_t(2 * sizeof(int32_t) + sizeof(double));
}

std::string memory_limit_problem(int64_t rank_bytes, const Recipe& recipe, int local_ranks) {
  const int64_t limit_mib = recipe.train.memory_limit_mib;
  if (limit_mib == 0 || rank_bytes <= (limit_mib << 20) / local_ranks) return "";
  return fmt::format("train.memory_limit_mib is {}{}, but a rank takes {}; {}", limit_mib,
                     local_ranks > 1 ? fmt::format(" for {} ranks together", local_ranks) : "",
                     format_bytes(rank_bytes), kLessMemory);
}

void require_memory(int64_t rank_bytes, const Recipe& recipe, comm::Group& ranks, int local_ranks,
                    int64_t machine_bytes) {
  const std::string problem = memory_limit_problem(rank_bytes, recipe, local_ranks);
  ASHLAR_REQUIRE(problem.empty(), kMemory, "{}", problem);
  std::array<int64_t, 1> all = {rank_bytes};
  add_up(ranks, all, "memory of ranks");
  const int64_t here = std::max(rank_bytes, all[0] / ranks.size() * local_ranks);
  if (here > machine_bytes) fail_memory(format_bytes(here), local_ranks, machine_bytes);
}

void require_least_memory(const Recipe& recipe, const ParallelSpec& parallel, DType compute,
                          int local_ranks, int64_t machine_bytes) {
  const double tokens = double(recipe.train.micro_batch) * double(recipe.data.sequence_length) /
                        double(parallel.sequence_ranks() * parallel.tp);
  const double least = tokens * double(recipe.model.hidden_size * size_of(compute)) * local_ranks;
  if (least > double(machine_bytes))
    fail_memory("over " + format_bytes(int64_t(std::min(least, 1e18))), local_ranks, machine_bytes);
}

std::string long_step_warning(const Recipe& recipe, double flop_per_token, double peak_flops) {
  constexpr double kLongS = 1800.0;
  const int64_t tokens = recipe.train.global_batch * recipe.data.sequence_length;
  const double least_s = double(tokens) * flop_per_token / peak_flops;
  if (least_s < kLongS) return "";
  return fmt::format(
      "a step has {} tokens (train.global_batch {} x data.sequence_length {}): at the measured "
      "peak of {:.0f} GFLOP/s it takes {}, and at a usual third of that {}; choose a smaller "
      "train.global_batch if that is not meant",
      format_thousands(tokens), format_thousands(recipe.train.global_batch),
      format_thousands(recipe.data.sequence_length), peak_flops * 1e-9, format_duration(least_s),
      format_duration(3.0 * least_s));
}

std::string threads_warning(int num_threads, int local_ranks, int num_cpus) {
  if (num_threads * local_ranks <= num_cpus) return "";
  return fmt::format(
      "{} rank{} x {} thread{} on {} CPU{}, which they take in turns; choose fewer ranks or "
      "train.threads={}",
      local_ranks, local_ranks == 1 ? "" : "s", num_threads, num_threads == 1 ? "" : "s", num_cpus,
      num_cpus == 1 ? "" : "s", std::max(1, num_cpus / local_ranks));
}

void warn_of_start(const Recipe& recipe, const RunScale& scale, int num_threads, int local_ranks,
                   int num_cpus, Log& log) {
  for (const std::string& warning :
       {threads_warning(num_threads, local_ranks, num_cpus),
        long_step_warning(recipe, scale.flop_per_token, scale.peak_flops)})
    if (!warning.empty()) log.warn("{}", warning);
}

void require_writable(FileSystem& files, const Recipe& recipe) {
  const std::string& directory = recipe.train.run_dir;
  const std::string there = nearest_there(files, directory);
  const auto info = files.stat(there, LinkPolicy::kFollow);
  ASHLAR_REQUIRE(info && info->type == FileInfo::Type::kDirectory, kStorage,
                 "train.run_dir is {}, but {} is no directory; choose another", directory, there);
  // Only the file system knows about rights, read-only mounts and quotas.  remove_temporaries()
  // removes files with such names.
  const auto moment = Clock::now().time_since_epoch().count() % 1'000'000'000;
  const std::string probe = join(there, fmt::format(".ashlar.{}{:09}.tmp", getpid(), moment));
  try {
    files.create(probe).reset();
    files.remove(probe);
  } catch (const Error& error) {
    ASHLAR_FAIL(kStorage,
                "train.run_dir is {}, where this process can make no file ({}); choose a directory "
                "that it may write to",
                directory, error.what());
  }
}

RunPlan accepted_plan(const Recipe& recipe, DType compute, FileSystem& files,
                      const RankResources& resources, const ComputeDevice& on) {
  comm::Group& ranks = resources.ranks;
  if (on.spec) {
    RunPlan plan = plan_run(recipe, compute, ranks.size(), resources.num_threads, 0, on);
    require_gpu_memory(plan, *on.spec);
    require_writable(files, recipe);
    return plan;
  }
  const ParallelSpec parallel = resolve_parallel(recipe, ranks.size());
  require_least_memory(recipe, parallel, compute, resources.local_ranks, memory_limit_bytes());
  RunPlan plan = plan_run(recipe, compute, ranks.size(), resources.num_threads, ranks.rank());
  require_memory(rank_bytes(plan, recipe, parallel), recipe, ranks, resources.local_ranks,
                 memory_limit_bytes());
  while_leader(ranks, "run directory", [&] { require_writable(files, recipe); });
  return plan;
}

void require_gpu_memory(const RunPlan& plan, const DeviceSpec& spec) {
  kernels::gpu::require_room(plan.memory, spec, "the run", kLessMemory);
}

int64_t saved_bytes(const Trainer& trainer) {
  int64_t bytes = 0;
  for (const LogicalTensor& tensor : trainer.whole_state())
    bytes += tensor.global_shape.numel() * size_of(tensor.dtype);
  return bytes;
}

void check_room(FileSystem& files, const Recipe& recipe, int64_t checkpoint_bytes, Log& log) {
  const CheckpointSpec& spec = recipe.checkpoint;
  if (spec.every < 0) return;
  const auto steps = checkpoint::committed_steps(files, checkpoint_root(recipe));
  if (!steps.empty() && steps.back().step >= recipe.train.steps) return;  // the run is done
  const auto there = int64_t(steps.size());
  const int64_t planned = spec.every > 0 ? (recipe.train.steps + spec.every - 1) / spec.every : 1;
  const int64_t for_ever = spec.keep_every > 0 ? recipe.train.steps / spec.keep_every : 0;
  // The newest is complete before the oldest is removed.
  const int64_t most = std::min(spec.keep + 1 + for_ever, there + planned);
  const int64_t free = files.free_bytes(nearest_there(files, recipe.train.run_dir));
  const int64_t needed = checkpoint::room_to_save(checkpoint_bytes);
  ASHLAR_REQUIRE(needed <= free, kStorage,
                 "a checkpoint has {} and is saved where {} are free, but the file system of {} "
                 "(train.run_dir) has {} free; make room or choose another directory",
                 format_bytes(checkpoint_bytes), format_bytes(needed), recipe.train.run_dir,
                 format_bytes(free));
  if (most - there > 1 + (free - needed) / checkpoint_bytes)
    log.warn(
        "checkpoint.keep is {}{}: up to {} checkpoints of {} are to stand in {} (train.run_dir), "
        "whose file system has {} free; lower checkpoint.keep or make room",
        spec.keep,
        for_ever > 0 ? fmt::format(" and checkpoint.keep_every {}", spec.keep_every) : "", most,
        format_bytes(checkpoint_bytes), recipe.train.run_dir, format_bytes(free));
}

}  // namespace ashlar::train
