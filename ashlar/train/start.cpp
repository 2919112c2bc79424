#include "ashlar/train/start.h"

#include "ashlar/comm/self/self.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/threads.h"

namespace ashlar::train {
namespace {

int64_t memory_limit(const Recipe& recipe, int num_ranks) {
  return recipe.train.memory_limit_mib > 0 ? (recipe.train.memory_limit_mib << 20) / num_ranks
                                           : INT64_MAX;
}

// Kernel threads of each rank.
int threads_of(const Recipe& recipe, int num_ranks) {
  if (recipe.train.threads > 0) return int(recipe.train.threads);
  return std::max(1, Threads(0).size() / num_ranks);
}

// "1, 2 and 4": the numbers of ranks that this recipe's batch can be shared by.
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

Outcome start_run(const Recipe& recipe, FileSystem& files, Log& log, int num_ranks) {
  check_ranks(recipe, num_ranks);
  const StopSignals signals;
  const int num_threads = threads_of(recipe, num_ranks);
  Allocator staging(Device::kCpu);
  Outcome outcome = Outcome::kDone;
  const auto train = [&](comm::Group& ranks, Log& rank_log) {
    Allocator allocator(Device::kCpu, memory_limit(recipe, num_ranks));
    const Outcome ended =
        run_training(recipe, files, rank_log, signals, {ranks, allocator, num_threads});
    if (ranks.rank() == 0) outcome = ended;
  };
  if (num_ranks == 1) {
    comm::SelfWorld world(staging);
    train(world.group(), log);
    return outcome;
  }
  Log silent([](std::string_view) {});  // what rank 0 says holds for all
  comm::run_ranks(num_ranks, {}, staging, [&](comm::Group& ranks) {
    train(ranks, ranks.rank() == 0 ? log : silent);
  });
  return outcome;
}

}  // namespace ashlar::train
