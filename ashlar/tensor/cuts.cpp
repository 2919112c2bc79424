// How it works.  Cuts are made from the left, so that later parts share what one has too little or
// too much.  With `done` the weight left of the last cut, `all` that of the row, and m parts to
// come, the next cut is wanted at
//
//   ideal   done + (all - done) / m
//   lowest  what leaves later parts no more than the cap each: all - (m - 1) cap; for the sake of
//           dim 0 no more than 1.02 of the mean each, so that later cuts have a choice of rows;
//           and a part of at least 0.9 (ideal - done)
//   highest done + cap
//
// The stretch in which ideal lies has borders of rows of dim 0 on both sides of it, closer together
// those of dim 1, and so on: the first dim wins of which one lies between lowest and highest.
#include "ashlar/tensor/cuts.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar {
namespace {

constexpr double kMinPartWeight = 0.9, kMaxMeanOfRest = 1.02;

class Cutter {
 public:
  Cutter(std::span<const Stretch> row, int64_t end, int64_t align)
      : row_(row), end_(end), align_(align), before_(row.size() + 1, 0) {
    for (size_t i = 0; i < row.size(); ++i)
      before_[i + 1] = before_[i] + (row[i].end - row[i].begin) * row[i].weight;
  }

  std::vector<int64_t> cut(int64_t num_parts) const {
    int64_t most = 1;  // the weight of an element
    for (const Stretch& s : row_) most = std::max(most, s.weight);
    const double all = double(before_.back()), mean = all / double(num_parts);
    const double cap = std::max(kMaxPartWeight * mean, mean + double(align_ * most));
    std::vector<int64_t> cuts{0};
    if (all == 0) cuts.resize(size_t(num_parts), end_);  // nothing has a weight
    for (int64_t parts = num_parts; all > 0 && parts > 1; --parts) {
      const double done = double(weight_before(cuts.back()));
      const double part = (all - done) / double(parts);
      const double least = done + kMinPartWeight * part, later = double(parts - 1);
      cuts.push_back(next({.ideal = done + part,
                           .lowest = std::max(all - later * cap, least),
                           .lowest_of_dim_0 = std::max(all - later * kMaxMeanOfRest * mean, least),
                           .highest = done + cap}));
    }
    cuts.push_back(end_);
    return cuts;
  }

 private:
  int64_t weight_before(int64_t at) const {
    const size_t i = size_t(
        std::partition_point(row_.begin(), row_.end(), [&](auto& s) { return s.end <= at; }) -
        row_.begin());
    return before_[i] +
           (i < row_.size() ? std::max<int64_t>(0, at - row_[i].begin) * row_[i].weight : 0);
  }

  // Weights before a cut.
  struct Window {
    double ideal, lowest, lowest_of_dim_0, highest;
  };

  int64_t next(const Window& window) const {
    const double ideal = window.ideal;
    const size_t i = size_t(std::upper_bound(before_.begin() + 1, before_.end() - 1, ideal) -
                            before_.begin() - 1);
    const Stretch& s = row_[i];
    const double at = double(s.begin) + (ideal - double(before_[i])) / double(s.weight);
    int64_t step = s.shape.numel();
    double lowest = window.lowest_of_dim_0;
    for (const int64_t extent : s.shape.dims()) {
      step /= extent;
      std::optional<int64_t> best;
      const int64_t origin = s.begin - s.first;
      const int64_t row = int64_t(std::floor((at - double(origin)) / double(step)));
      for (const int64_t border : {origin + row * step, origin + (row + 1) * step}) {
        const int64_t inside = std::clamp(border, s.begin, s.end);
        const double weight = double(before_[i] + (inside - s.begin) * s.weight);
        const bool nearer = !best || std::abs(double(inside) - at) < std::abs(double(*best) - at);
        if (inside % align_ == 0 && lowest <= weight && weight <= window.highest && nearer)
          best = inside;
      }
      if (best) return *best;
      lowest = window.lowest;
    }
    return std::min(end_, round_up(int64_t(std::ceil(at)), align_));
  }

  std::span<const Stretch> row_;
  int64_t end_, align_;
  std::vector<int64_t> before_;  // weight of all stretches before each
};

}  // namespace

std::vector<int64_t> even_cuts(std::span<const Stretch> row, int64_t end, int64_t num_parts,
                               int64_t align) {
  ASHLAR_ASSERT(num_parts >= 1 && align >= 1);
  return Cutter(row, end, align).cut(num_parts);
}

}  // namespace ashlar
