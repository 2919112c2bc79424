// How it works.  The state with its units and buckets, and the rank that keeps each element, for
// three ranks:
//
//   units        |             0             |         1         |
//   buckets      |    0    |    1    |   2   |    0    |    1    |
//   contiguous   |0000000000000000|1111111111111111|2222222222222|
//   bucketed     |000111222|000111222|0011222|000111222|000111222|
//
// `piece` is a rank's part of one bucket, for collectives; `kept` joins adjacent pieces.  Cuts are
// at multiples of align, counted from the beginning of a unit; the lengths of units are multiples
// too.
#include "ashlar/parallel/shards.h"

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar::parallel {
Range intersect(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Shards::Shards(std::vector<int64_t> unit_numel, std::span<const Stretch> tensors, int num_ranks,
               ShardLayout layout, int64_t bucket_numel, int64_t align)
    : unit_numel_(std::move(unit_numel)),
      num_ranks_(num_ranks),
      layout_(layout),
      bucket_numel_(round_up(bucket_numel, align)),
      align_(align) {
  ASHLAR_ASSERT(num_ranks >= 1 && bucket_numel >= 1);
  int64_t total = 0;
  for (const int64_t numel : unit_numel_) {
    ASHLAR_ASSERT(numel % align_ == 0);
    unit_begin_.push_back(total);
    total += numel;
  }
  if (layout_ == ShardLayout::kContiguous) cuts_ = even_cuts(tensors, total, num_ranks_, align_);
}

int64_t Shards::num_buckets(int64_t unit) const {
  return ceil_div(unit_numel_[size_t(unit)], bucket_numel_);
}

Range Shards::bucket(int64_t unit, int64_t index) const {
  return {index * bucket_numel_, std::min((index + 1) * bucket_numel_, unit_numel_[size_t(unit)])};
}

Range Shards::piece(int64_t unit, int64_t index, int rank) const {
  const Range whole = bucket(unit, index);
  if (layout_ == ShardLayout::kContiguous) {
    // The ranks cut the bucket in their order; those that keep none of it have empty pieces at its
    // ends.
    const auto cut = [&](int r) {
      return std::clamp(cuts_[size_t(r)] - unit_begin_[size_t(unit)], whole.begin, whole.end);
    };
    return {cut(rank), cut(rank + 1)};
  }
  const int64_t blocks = whole.size() / align_;
  const auto cut = [&](int64_t r) { return whole.begin + blocks * r / num_ranks_ * align_; };
  return {cut(rank), cut(rank + 1)};
}

std::vector<Range> Shards::kept(int64_t unit, int rank) const {
  return kept(unit, rank, {0, unit_numel_[size_t(unit)]});
}

std::vector<Range> Shards::kept(int64_t unit, int rank, const Range& within) const {
  std::vector<Range> ranges;
  if (layout_ == ShardLayout::kContiguous) {  // pieces of buckets that touch
    const int64_t unit_begin = unit_begin_[size_t(unit)];
    const Range mine{cuts_[size_t(rank)] - unit_begin, cuts_[size_t(rank) + 1] - unit_begin};
    const Range all = intersect(mine, {0, unit_numel_[size_t(unit)]});
    if (!all.empty()) ranges.push_back(all);
    return ranges;
  }
  const int64_t end = std::min(num_buckets(unit), ceil_div(within.end, bucket_numel_));
  for (int64_t b = within.begin / bucket_numel_; b < end; ++b) {
    const Range part = piece(unit, b, rank);
    if (part.empty()) continue;
    if (!ranges.empty() && ranges.back().end == part.begin)
      ranges.back().end = part.end;
    else
      ranges.push_back(part);
  }
  return ranges;
}

int64_t Shards::kept_numel(int64_t unit, int rank) const {
  int64_t numel = 0;
  for (const Range& range : kept(unit, rank)) numel += range.size();
  return numel;
}

}  // namespace ashlar::parallel
