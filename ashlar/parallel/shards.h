// The elements of a flat state that each rank keeps: ZeRO's arithmetic, without ranks or memory.
//
// The state is a row of units (nn/model.h), T elements long.
//   contiguous   the row is cut into N stretches of about the same weight, at multiples of `align`
//                and preferably at rows or experts of its tensors (tensor/cuts.h); borders of units
//                and buckets do not matter (ZAYA1, arXiv 2511.17127, cuts anywhere)
//   bucketed     every bucket is cut evenly, at multiples of `align`: a rank keeps a slice of each
// A bucket is the part of a unit that one collective moves.  All are equal but the last of a unit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/cuts.h"

namespace ashlar::parallel {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};
Range intersect(const Range& a, const Range& b);  // empty: begin == end

class Shards {
 public:
  // unit_numel: multiples of align.  tensors: their stretches of the whole row, ascending.
  // bucket_numel: at least 1; rounded up to a multiple of align.
  Shards(std::vector<int64_t> unit_numel, std::span<const Stretch> tensors, int num_ranks,
         ShardLayout layout, int64_t bucket_numel, int64_t align);

  int num_ranks() const { return num_ranks_; }
  int64_t num_units() const { return int64_t(unit_numel_.size()); }
  int64_t num_buckets(int64_t unit) const;
  // The ranges below count elements of the unit.
  Range bucket(int64_t unit, int64_t index) const;
  Range piece(int64_t unit, int64_t index, int rank) const;  // the rank's part of the bucket
  // The ranges of a unit that the rank keeps: disjoint, in order, each as long as possible.
  std::vector<Range> kept(int64_t unit, int rank) const;
  // The same ranges as far as they lie in `within`; they may go on beyond its ends.
  std::vector<Range> kept(int64_t unit, int rank, const Range& within) const;
  int64_t kept_numel(int64_t unit, int rank) const;

 private:
  std::vector<int64_t> unit_numel_, unit_begin_;
  int num_ranks_;
  ShardLayout layout_;
  int64_t bucket_numel_, align_;
  std::vector<int64_t> cuts_;  // of the whole row: rank r keeps [cuts_[r], cuts_[r + 1])
};

}  // namespace ashlar::parallel
