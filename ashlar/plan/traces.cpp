#include "ashlar/plan/traces.h"

#include <fmt/format.h>

#include "ashlar/train/dry_rank.h"

namespace ashlar::plan {

void write_traces(const Recipe& recipe, DType compute, int num_ranks, std::optional<int> rank,
                  FileSystem& files, const std::string& directory, Log& log,
                  const train::ComputeDevice& on) {
  ASHLAR_REQUIRE(rank || num_ranks <= kMaxTracedRanks, kConfig,
                 "--trace of {} ranks; expected at most {}, or one of them by --rank", num_ranks,
                 kMaxTracedRanks);
  const int first = rank.value_or(0), last = rank ? *rank + 1 : num_ranks;
  Threads threads(train::planned_threads(recipe, 0));
  Progress progress(log, "tracing ranks", last - first, "ranks");
  for (int r = first; r < last; ++r) {
    train::DryRank dry(recipe, compute, num_ranks, r, threads, {}, nullptr, on);
    write_text(files, join(directory, fmt::format("dry-rank-{}.json", r)), dry.traced_step());
    progress.advance(1);
  }
}

}  // namespace ashlar::plan
