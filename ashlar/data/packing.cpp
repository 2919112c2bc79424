#include "ashlar/data/packing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ashlar/core/error.h"

namespace ashlar::data {

std::span<const int64_t> Windows::items_of(int64_t window) const {
  const auto begin = static_cast<size_t>(first[static_cast<size_t>(window)]);
  const auto end = static_cast<size_t>(first[static_cast<size_t>(window) + 1]);
  return std::span(items).subspan(begin, end - begin);
}

Windows pack_best_fit(std::span<const int64_t> lengths, int64_t capacity) {
  ASHLAR_ASSERT(capacity > 0);
  Windows windows;
  const auto length_of = [&](int64_t item) { return lengths[static_cast<size_t>(item)]; };
  std::vector<int64_t> order;
  for (int64_t item = 0; item < static_cast<int64_t>(lengths.size()); ++item) {
    if (length_of(item) > capacity) {
      ++windows.num_dropped;
      windows.dropped_tokens += length_of(item);
    } else if (length_of(item) > 0) {
      order.push_back(item);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });

  std::set<std::pair<int64_t, int64_t>> open;  // (room left, window), fullest first
  std::vector<int64_t> window_of(order.size());
  int64_t num_windows = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t length = length_of(order[i]);
    // The first with enough room: the fullest window that fits, of equal ones the oldest.
    auto fit = open.lower_bound({length, 0});
    const std::pair<int64_t, int64_t> chosen =
        fit == open.end() ? std::pair{capacity, num_windows++} : *fit;
    if (fit != open.end()) open.erase(fit);
    window_of[i] = chosen.second;
    if (chosen.first > length) open.insert({chosen.first - length, chosen.second});
  }

  // A counting sort by window, in which the items of a window keep the order of their placing.
  windows.first.assign(static_cast<size_t>(num_windows) + 1, 0);
  for (const int64_t window : window_of) ++windows.first[static_cast<size_t>(window) + 1];
  for (size_t w = 1; w < windows.first.size(); ++w) windows.first[w] += windows.first[w - 1];
  windows.items.resize(order.size());
  std::vector<int64_t> next(windows.first.begin(), windows.first.end() - 1);
  for (size_t i = 0; i < order.size(); ++i)
    windows.items[static_cast<size_t>(next[static_cast<size_t>(window_of[i])]++)] = order[i];
  return windows;
}

}  // namespace ashlar::data
