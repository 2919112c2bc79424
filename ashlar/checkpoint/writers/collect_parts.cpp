#include "ashlar/checkpoint/writers/collect_parts.h"

#include <fmt/core.h>

#include <algorithm>

namespace ashlar::checkpoint {
namespace {

// Sorts the parts by rank; there must be one of each rank from 1 on.
void sort_and_check(std::vector<WriterPart>& parts, int num_writers) {
  std::sort(parts.begin(), parts.end(),
            [](const WriterPart& a, const WriterPart& b) { return a.rank < b.rank; });
  for (size_t i = 0; i < parts.size(); ++i)
    ASHLAR_REQUIRE(parts[i].rank == int(i) + 1, kCorrupt,
                   "there is a part of writer {} where that of writer {} is expected",
                   writer_number(parts[i].rank), writer_number(int(i) + 1));
  ASHLAR_REQUIRE(int(parts.size()) + 1 == num_writers, kCorrupt,
                 "there are parts of {} writers; {} are expected", parts.size() + 1, num_writers);
}

}  // namespace

std::optional<AllParts> collect_parts(SaveTree& tree, KnownBoxes& known, const Id& attempt,
                                      int num_writers, double now) {
  const GatheredParts* gathered = tree.gathered(attempt);
  if (!gathered) return std::nullopt;
  AllParts all;
  all.cover = gathered->cover;
  all.parts = decode_parts(gathered->entries);
  sort_and_check(all.parts, num_writers);
  for (const auto& [rank, bytes] : tree.boxes(attempt)) {
    std::vector<WriterPart> one = decode_parts(bytes);
    ASHLAR_REQUIRE(0 < rank && rank < num_writers && one.size() == 1 && one[0].rank == rank &&
                       one[0].has_boxes,
                   kCorrupt, "the boxes of writer {} are not its own", writer_number(rank));
    all.parts[size_t(rank) - 1] = std::move(one[0]);
  }
  const std::vector<int> lacking = known.lacking(all.parts);
  if (!lacking.empty()) {
    tree.ask(attempt, lacking, now);
    return std::nullopt;
  }
  known.complete(all.parts);
  return all;
}

}  // namespace ashlar::checkpoint
