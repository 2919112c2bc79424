// The merging of byte pair encoding: of all pairs of neighbours that have a rule, the one whose
// rule has the lowest rank is joined, the first one of equals, until none is left.
//
// Source  Sennrich et al. 2016.
// Cost    O(n^2) of a few symbols, which a word has; O(n log n) of more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ashlar::data {

class PairMerges {
 public:
  explicit PairMerges(size_t most);  // rules
  // The last rule of a pair counts.
  void add(int32_t left, int32_t right, uint32_t rank, int32_t joined);
  // Merges the symbols from `begin` on.
  void apply(std::vector<int32_t>& symbols, size_t begin) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;  // of both, joined
  };
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }
  size_t slot_of(uint64_t key) const {
    size_t slot = size_t((key ^ key >> 29) * 0x9E3779B97F4A7C15ull >> shift_);
    while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & mask_;
    return slot;
  }
  Merge find(int32_t left, int32_t right) const {
    return slots_[slot_of(key_of(left, right))].merge;
  }
  void merge_by_scan(std::vector<int32_t>& symbols, size_t begin) const;
  void merge_by_queue(std::vector<int32_t>& symbols, size_t begin) const;

  std::vector<Slot> slots_;  // an open hash table
  size_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace ashlar::data
