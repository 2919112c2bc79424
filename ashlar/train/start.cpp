#include "ashlar/train/start.h"

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ashlar/comm/launch_check.h"
#include "ashlar/comm/mpi/run_mpi.h"
#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/threads.h"

namespace ashlar::train {
namespace {

int64_t memory_limit(const Recipe& recipe, int local_ranks) {
  return recipe.train.memory_limit_mib > 0 ? (recipe.train.memory_limit_mib << 20) / local_ranks
                                           : INT64_MAX;
}

// Kernel threads of each of the ranks on this machine.
int threads_of(const Recipe& recipe, int local_ranks) {
  if (recipe.train.threads > 0) return int(recipe.train.threads);
  // A launcher that binds ranks has shared out the CPUs already.
  const int all = int(std::thread::hardware_concurrency()), ours = Threads(0).size();
  return ours < all ? ours : std::max(1, ours / local_ranks);
}

const char* variable(const char* name) {
  return std::getenv(name);
}

// Set by the launchers that Open MPI can join processes under.
bool is_mpi_process() {
  return variable("OMPI_COMM_WORLD_SIZE") || variable("PMIX_RANK") || variable("PMI_RANK");
}

int local_processes(int world_size) {
  const char* local = variable("OMPI_COMM_WORLD_LOCAL_SIZE");
  return local ? std::max(1, std::atoi(local)) : world_size;
}

// "1 2 4": the numbers of ranks that this recipe's batch can be shared by.
std::string legal_ranks(const Recipe& recipe) {
  std::string list;
  const int64_t rows = recipe.train.global_batch / recipe.train.micro_batch;
  for (int64_t n = 1; n <= rows; ++n)
    if (rows % n == 0 && recipe.data.num_streams % n == 0)
      list += fmt::format("{}{}", list.empty() ? "" : " ", n);
  return list;
}

}  // namespace

void check_ranks(const Recipe& recipe, int num_ranks) {
  ASHLAR_REQUIRE(num_ranks >= 1, kConfig, "--ranks is {}; expected 1 or more", num_ranks);
  const int64_t batches = recipe.train.global_batch / recipe.train.micro_batch;
  ASHLAR_REQUIRE(batches % num_ranks == 0 && recipe.data.num_streams % num_ranks == 0, kConfig,
                 "{} ranks cannot share a step of {} micro-batches (train.global_batch {} / "
                 "train.micro_batch {}) in {} streams (data.num_streams); choose one of: {}",
                 num_ranks, batches, recipe.train.global_batch, recipe.train.micro_batch,
                 recipe.data.num_streams, legal_ranks(recipe));
}

Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, const Start& start) {
  const StopSignals signals;
  Allocator staging(Device::kCpu);
  Log silent([](std::string_view) {});  // what rank 0 says holds for all
  Outcome outcome = Outcome::kDone;
  const auto train = [&](comm::Group& ranks, int local_ranks) {
    check_ranks(recipe, ranks.size());
    Allocator allocator(Device::kCpu, memory_limit(recipe, local_ranks));
    return run_training(recipe, files, ranks.rank() == 0 ? log : silent, signals,
                        {ranks, allocator, threads_of(recipe, local_ranks)});
  };
  if (is_mpi_process()) {
    ASHLAR_REQUIRE(start.num_ranks == 1, kConfig,
                   "--ranks is {} within processes that a launcher started; choose one of the two",
                   start.num_ranks);
    const auto body = [&](comm::Group& ranks) {
      outcome = train(ranks, local_processes(ranks.size()));
    };
    comm::run_mpi({}, staging, body, [&](std::string_view message, int) { start.report(message); });
    return outcome;
  }
  comm::check_launch(start.num_ranks, [](const char* name) { return variable(name); });
  if (start.num_ranks == 1) {
    comm::SelfWorld world(staging);
    return train(world.group(), 1);
  }
  check_ranks(recipe, start.num_ranks);
  comm::run_ranks(start.num_ranks, {}, staging, [&](comm::Group& ranks) {
    const Outcome ended = train(ranks, start.num_ranks);
    if (ranks.rank() == 0) outcome = ended;
  });
  return outcome;
}

}  // namespace ashlar::train
