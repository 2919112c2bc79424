#include "ashlar/data/pair_merges.h"

#include <algorithm>
#include <bit>
#include <queue>

namespace ashlar::data {
namespace {

// More symbols are merged with a queue, fewer by looking for the best pair again and again.
constexpr size_t kMostScannedSymbols = 48;

struct QueuedMerge {
  uint32_t rank;
  int32_t at, id;
  bool operator<(const QueuedMerge& other) const {  // the best is the greatest
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

PairMerges::PairMerges(size_t most) {
  const size_t size = std::bit_ceil(most * 2 + 2);
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void PairMerges::add(int32_t left, int32_t right, uint32_t rank, int32_t joined) {
  const uint64_t key = key_of(left, right);
  slots_[slot_of(key)] = {key, {rank, joined}};
}

void PairMerges::apply(std::vector<int32_t>& symbols, size_t begin) const {
  if (symbols.size() - begin > kMostScannedSymbols)
    merge_by_queue(symbols, begin);
  else
    merge_by_scan(symbols, begin);
}

void PairMerges::merge_by_scan(std::vector<int32_t>& ids, size_t begin) const {
  size_t count = ids.size() - begin;
  if (count < 2) return;
  int32_t* symbols = ids.data() + begin;
  Merge pairs[kMostScannedSymbols];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].id;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.resize(begin + count);
}

void PairMerges::merge_by_queue(std::vector<int32_t>& ids, size_t begin) const {
  const auto count = int32_t(ids.size() - begin);
  int32_t* symbols = ids.data() + begin;
  std::vector<int32_t> before(size_t(count), 0), after(size_t(count), 0);
  for (int32_t i = 0; i < count; ++i) before[size_t(i)] = i - 1, after[size_t(i)] = i + 1;
  std::priority_queue<QueuedMerge> queue;
  const auto offer = [&](int32_t at) {
    if (at < 0 || after[size_t(at)] >= count) return;
    const Merge merge = find(symbols[at], symbols[after[size_t(at)]]);
    if (merge.rank != kNoRank) queue.push({merge.rank, at, merge.id});
  };
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const QueuedMerge top = queue.top();
    queue.pop();
    const auto at = size_t(top.at);
    if (symbols[at] < 0 || after[at] >= count) continue;
    const int32_t right = after[at];
    if (find(symbols[at], symbols[right]).id != top.id) continue;  // it has changed since
    symbols[at] = top.id;
    symbols[right] = -1;
    after[at] = after[size_t(right)];
    if (after[at] < count) before[size_t(after[at])] = top.at;
    offer(before[at]);
    offer(top.at);
  }
  ids.erase(std::remove(ids.begin() + int64_t(begin), ids.end(), -1), ids.end());
}

}  // namespace ashlar::data
