#include "ashlar/comm/world.h"

#include <numeric>

namespace ashlar::comm {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void check(int size, const Options& options) {
  if (size == 1) return;
  const int64_t least = int64_t{64} * size;  // a cache line a rank
  ASHLAR_REQUIRE(options.staging_bytes >= least, kConfig,
                 "staging_bytes is {} but {} ranks need at least {}", options.staging_bytes, size,
                 least);
  ASHLAR_REQUIRE(options.timeout_s > 0, kConfig, "timeout_s is {} but must be positive",
                 options.timeout_s);
}

}  // namespace

World::World(Engine& engine, const Options& options, Allocator& allocator)
    : engine(engine),
      options((check(engine.size(), options), options)),
      allocator(allocator),
      failure_state(engine),
      group(*this, "world", all_ranks(engine.size()), "world") {}

Lane& World::lane(const std::string& name, bool sums) {
  if (const auto found = lanes.find(name); found != lanes.end()) return found->second;
  Buffer staging = allocator.allocate(sums ? options.staging_bytes : 0, Tag::kCommunication);
  auto executor = engine.executor(name, failure_state, std::move(staging), options.timeout_s);
  const int16_t number = trace.add_lane(name, !engine.immediate());
  return lanes.try_emplace(name, std::move(executor), trace, number).first->second;
}

}  // namespace ashlar::comm
