// Best-fit decreasing: packs whole documents into windows of fixed capacity and never cuts one.
//
// Source  bin packing, best-fit decreasing (Johnson 1973); for training: Ding et al. 2024,
//         arXiv 2404.10830.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ashlar::data {

struct Windows {
  std::vector<int64_t> items;  // numbers of the documents, window after window
  std::vector<int64_t> first;  // window w holds items[first[w]] .. items[first[w + 1] - 1]
  int64_t num_dropped = 0;     // documents longer than a window, and
  int64_t dropped_tokens = 0;  // their tokens

  int64_t size() const { return static_cast<int64_t>(first.size()) - 1; }
  std::span<const int64_t> items_of(int64_t window) const;
};

// Takes the longest first (equal lengths in their order), and puts each into the fullest window
// with room for it (of equally full ones the oldest), else into a new one.  Documents of length 0
// are left out. Cost: O(n log n) time, O(n) memory.
Windows pack_best_fit(std::span<const int64_t> lengths, int64_t capacity);

}  // namespace ashlar::data
