#include "ashlar/train/start.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "ashlar/checkpoint/root/rewind.h"
#include "ashlar/comm/agree.h"
#include "ashlar/comm/launch_check.h"
#include "ashlar/comm/mpi/run_mpi.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/agent.h"
#include "ashlar/core/stack_note.h"
#include "ashlar/train/alike.h"
#include "ashlar/train/run_pulse.h"
#include "ashlar/train/run_recipe.h"
#include "ashlar/train/saves.h"

namespace ashlar::train {
namespace {

int64_t memory_limit(const RankSettings& settings, int local_ranks) {
  return settings.memory_limit_mib > 0 ? (settings.memory_limit_mib << 20) / local_ranks
                                       : INT64_MAX;
}

RankSettings settings_of(const Recipe& recipe, const Start& start) {
  comm::Options options;
  options.timeout_s = recipe.parallel.timeout_s;
  options.telling.line = start.tell;
  if (recipe.parallel.collectives == CollectiveMode::kNative)
    options.collectives = comm::Collectives::kNative;
  return {recipe.train.threads, recipe.train.memory_limit_mib, options};
}

const char* variable(const char* name) {
  return std::getenv(name);
}

// Variables set by launchers under which Open MPI can connect processes.
bool is_mpi_process() {
  return variable("OMPI_COMM_WORLD_SIZE") || variable("PMIX_RANK") || variable("PMI_RANK");
}

bool runs_on_processes(const Start& start) {
  return !start.independent && is_mpi_process();
}

// Refuses copies that a launcher started and that MPI did not join, as where it belongs to another
// MPI.  SLURM_NTASKS may be that of an allocation in which mpirun starts fewer.
void require_joined(int world_size) {
  if (world_size > 1) return;
  const bool by_mpirun = variable("OMPI_COMM_WORLD_SIZE") != nullptr;
  comm::check_launch(world_size, [&](const char* name) -> const char* {
    return by_mpirun && name == std::string_view("SLURM_NTASKS") ? nullptr : variable(name);
  });
}

// The number of the run's processes on this machine, from the variables of the launcher: Open
// MPI's, MPICH's, Slurm's ("4(x2)").
int local_processes() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"})
    if (const char* value = variable(name)) return std::max(1, std::atoi(value));
  return 1;
}

// The places of ranks that are threads of this process.
std::vector<Placed> places_here(const RankSettings& settings, const Start& start) {
  const std::vector<Cpus> usable(size_t(start.num_ranks), usable_cpus());
  return place_host(topology_for(start.binding), usable, int(settings.threads), start.binding);
}

}  // namespace

std::string_view engine_of(const Start& start) {
  if (runs_on_processes(start)) return "mpi";
  return start.num_ranks == 1 ? "self" : "thread";
}

void check_ranks(const Recipe& recipe, int num_ranks) {
  resolve_parallel(recipe, num_ranks);
  ASHLAR_REQUIRE(num_ranks > 1 || recipe.parallel.collectives == CollectiveMode::kExact, kConfig,
                 "parallel.collectives is native but this process is the only rank; use mpirun, or "
                 "exact");
}

void start_ranks(const Recipe& recipe, const Start& start,
                 const std::function<void(const RankResources& resources)>& body) {
  const bool processes = runs_on_processes(start);
  if (!processes) {  // checks before anything is allocated for each rank
    comm::check_launch(start.num_ranks, [](const char* name) { return variable(name); });
    check_ranks(recipe, start.num_ranks);
  }
  start_ranks(settings_of(recipe, start), start, [&](const RankResources& resources) {
    // Each process is started, and reads its recipe, by itself.
    if (processes) require_one_recipe(resources.ranks, recipe);
    body(resources);
  });
}

void start_ranks(const RankSettings& settings, const Start& start,
                 const std::function<void(const RankResources& resources)>& body) {
  const bool processes = runs_on_processes(start);
  const int local_ranks = processes ? local_processes() : start.num_ranks;
  if (!processes && !start.independent)
    comm::check_launch(start.num_ranks, [](const char* name) { return variable(name); });
  std::vector<std::unique_ptr<Allocator>> allocators;  // one for each rank of this process
  for (int i = 0; i < (processes ? 1 : start.num_ranks); ++i)
    allocators.push_back(
        std::make_unique<Allocator>(Device::kCpu, memory_limit(settings, local_ranks)));
  const std::vector<Placed> places =
      processes ? std::vector<Placed>() : places_here(settings, start);
  const auto run_rank = [&](comm::Group& ranks, Allocator& allocator) {
    Placed placed = processes ? place_process(ranks, int(settings.threads), start.binding)
                              : places[size_t(ranks.rank())];
    const BoundThread bound = bind_to(placed);
    if (!bound.is_bound()) {
      placed.threads.clear();
      placed.home.clear();
      placed.text = "not bound, which the system does not permit";
    }
    if (processes && !placed.home.empty()) bind_other_threads(placed.home);
    body({ranks, allocator, placed.num_threads, local_ranks, placed.num_cpus,
          ranks.rank() == 0 ? start.timing : nullptr,
          describe_places(comm::all_said(ranks, placed.text, "places"))});
  };
  if (processes) {
    ASHLAR_REQUIRE(start.num_ranks == 1, kConfig,
                   "--ranks is {} within processes that a launcher started; choose one of the two",
                   start.num_ranks);
    return comm::run_mpi(
        settings.communication, *allocators[0],
        [&](comm::Group& ranks) {
          require_joined(ranks.size());
          require_one_program(ranks);
          run_rank(ranks, *allocators[0]);
        },
        [&](std::string_view message, int) { start.report(message); });
  }
  if (start.num_ranks == 1) {
    comm::SelfWorld world(*allocators[0]);
    return run_rank(world.group(), *allocators[0]);
  }
  // Called on the rank's thread before its lanes start, which then are at home.
  const auto allocator_of = [&](int rank) -> Allocator& {
    bind_thread(places[size_t(rank)].home, places[size_t(rank)].home);
    return *allocators[size_t(rank)];
  };
  comm::run_ranks(start.num_ranks, settings.communication, allocator_of,
                  [&](comm::Group& ranks) { run_rank(ranks, *allocators[size_t(ranks.rank())]); });
}

Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, const Start& start) {
  const StopSignals signals;
  Start telling = start;
  telling.tell = [&log](std::string_view line) { log.warn("{}", line); };
  if (launch_attempt() > 0) answer_stack_signals(pulse_directory(recipe.train.run_dir));
  Log silent([](std::string_view) {});  // rank 0 logs for all
  Outcome outcome = Outcome::kDone;     // the same on all
  start_ranks(recipe, telling, [&](const RankResources& resources) {
    const bool leads = resources.ranks.rank() == 0;
    open_pulse(resources.ranks, recipe, log);
    while_leader(resources.ranks, "directory of the run", [&] {
      require_own_recipe(files, recipe);
      if (start.from_step)
        checkpoint::rewind(files, checkpoint_root(recipe), *start.from_step, start.supersede, log);
    });
    const Outcome ended = run_training(recipe, files, leads ? log : silent, signals, resources);
    if (leads || runs_on_processes(start)) outcome = ended;
  });
  return outcome;
}

}  // namespace ashlar::train
