// Exact memory of layouts, by dry runs of their fullest ranks, each layout once.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "ashlar/train/plan.h"

namespace ashlar::plan {

struct RankMemory {
  int rank = 0;
  int64_t total_bytes = 0;
  std::array<int64_t, kNumTags> tag_bytes{};
  std::string workspace_peak;
};

// Ranks of which one is the fullest, or within a few parts of a thousand of it: the first and the
// last rank of the first and of the last stage.  The first stage keeps most micro-batches and has
// the longest run of blocks, the last one has the head; ranks of a stage differ in the places of
// their shards only.
std::vector<int> fullest_ranks(const ParallelSpec& resolved);

class LayoutMemory {
 public:
  LayoutMemory(DType compute, int num_ranks) : compute_(compute), num_ranks_(num_ranks) {}
  // name: of the layout, the same for the same recipe.
  const RankMemory& fullest(const Recipe& recipe, const std::string& name);
  size_t num_layouts() const { return known_.size(); }

 private:
  DType compute_;
  int num_ranks_;
  std::map<std::string, RankMemory> known_;
};

}  // namespace ashlar::plan
