#include "ashlar/comm/world.h"

#include <numeric>

namespace ashlar::comm {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int64_t staging_for(int size, const Options& options) {
  if (size == 1) return 0;
  const int64_t least = int64_t{64} * size;  // a cache line a rank
  ASHLAR_REQUIRE(options.staging_bytes >= least, kConfig,
                 "staging_bytes is {} but {} ranks need at least {}", options.staging_bytes, size,
                 least);
  ASHLAR_REQUIRE(options.timeout_s > 0, kConfig, "timeout_s is {} but must be positive",
                 options.timeout_s);
  return options.staging_bytes;
}

}  // namespace

World::World(Transport& transport, const Options& options, Allocator& allocator,
             std::vector<Record>* records)
    : transport(transport),
      options(options),
      records(records),
      staging(allocator.allocate(staging_for(transport.size(), options), Tag::kCommunication)),
      queue(transport),
      group(*this, "world", all_ranks(transport.size())) {}

}  // namespace ashlar::comm
