// How it works.  Groups of parts are cut first, all together (whole_experts): among the borders on
// both sides of each even position, the ones that minimise the sum of the squares of the groups'
// weights, such that no group is too heavy.  Group sizes are tried from 1 on.
//   Each group is then cut from the left (cut_group), so that later parts share the excess or
// shortfall of earlier ones.  Let `done` be the weight left of the last cut, `all` the weight left
// of the end of the group, and m the number of parts to come.  Then the next cut has
//
//   ideal   done + (all - done) / m
//   lowest  the largest of: all - (m - 1) cap, which leaves later parts no more than the cap each;
//           for dim 0 the same with 1.02 of the mean instead of the cap, so that later cuts have a
//           choice of rows; and a part of at least 0.9 (ideal - done)
//   highest done + cap
//
// The stretch that contains ideal has borders of rows of dim 0 on both sides of it, borders of dim
// 1 closer together, and so on.  The first dim that has a border between lowest and highest wins.
#include "ashlar/tensor/cuts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"

namespace ashlar {
namespace {

constexpr double kMinPartWeight = 0.9, kMaxMeanOfRest = 1.02;
constexpr double kMaxGroupWeight = 1.04;  // of the mean; below kMaxPartWeight

using Cuts = std::vector<int64_t>;

class Cutter {
 public:
  Cutter(std::span<const Stretch> row, int64_t end, int64_t align)
      : row_(row), end_(end), align_(align), before_(row.size() + 1, 0) {
    for (size_t i = 0; i < row.size(); ++i)
      before_[i + 1] = before_[i] + (row[i].end - row[i].begin) * row[i].weight;
  }

  Cuts cut(int64_t num_parts) const {
    if (before_.back() == 0) {  // all weights are 0
      Cuts cuts(size_t(num_parts) + 1, end_);
      cuts[0] = 0;
      return cuts;
    }
    for (int64_t size = 1; size < num_parts && num_parts % size == 0; size *= 2) {
      const double most = size == 1 ? kMaxPartWeight : kMaxGroupWeight;
      if (const auto cuts = whole_experts(num_parts / size, most))
        return cut_groups(*cuts, size, num_parts);
    }
    return cut_groups({0, end_}, num_parts, num_parts);
  }

 private:
  double mean(int64_t num_parts) const { return double(before_.back()) / double(num_parts); }

  // nullopt if there are no such cuts.
  std::optional<Cuts> whole_experts(int64_t num_groups, double most_weight) const {
    const double mean = this->mean(num_groups), cap = most_weight * mean;
    struct Border {
      int64_t at;
      double weight, squares;  // before it
      size_t last;             // best border of the cut before
    };
    std::vector<std::vector<Border>> cuts{{{0, 0, 0, 0}}};
    for (int64_t n = 1; n <= num_groups; ++n) {
      const Cuts places = n == num_groups ? Cuts{end_} : borders_beside(mean * double(n), mean);
      std::vector<Border> borders;
      for (const int64_t at : places) {
        Border best{at, double(weight_before(at)), -1, 0};
        for (size_t last = 0; last < cuts.back().size(); ++last) {
          const double group = best.weight - cuts.back()[last].weight;
          const double squares = cuts.back()[last].squares + group * group;
          if (at < cuts.back()[last].at || group > cap) continue;
          if (best.squares >= 0 && best.squares <= squares) continue;
          best.squares = squares;
          best.last = last;
        }
        if (best.squares >= 0) borders.push_back(best);
      }
      if (borders.empty()) return std::nullopt;
      cuts.push_back(std::move(borders));
    }
    Cuts best(cuts.size());
    size_t place = 0;
    for (size_t n = cuts.size(); n-- > 0; place = cuts[n][place].last) best[n] = cuts[n][place].at;
    return best;
  }

  // Positions where experts or other tensors begin or end, or rows of a tensor that is heavier than
  // a group.
  Cuts borders_beside(double weight, double group) const {
    const size_t i = stretch_at(weight);
    const Stretch& s = row_[i];
    const double at = double(s.begin) + (weight - double(before_[i])) / double(s.weight);
    Cuts borders;
    const bool has_rows = s.shape.ndim() > 2 || double(before_[i + 1] - before_[i]) > group;
    for (const int64_t border : rows_beside(s, at, s.shape.numel() / (has_rows ? s.shape[0] : 1)))
      if (border % align_ == 0) borders.push_back(border);
    return borders;
  }

  Cuts cut_groups(const Cuts& groups, int64_t size, int64_t num_parts) const {
    int64_t most = 1;  // the weight of an element
    for (const Stretch& s : row_) most = std::max(most, s.weight);
    const double mean = this->mean(num_parts);
    const double cap = std::max(kMaxPartWeight * mean, mean + double(align_ * most));
    Cuts cuts{0};
    for (size_t g = 0; g + 1 < groups.size(); ++g) cut_group(groups[g + 1], size, cap, cuts);
    return cuts;
  }

  // Cuts from the last of `cuts` to `end`.
  void cut_group(int64_t end, int64_t num_parts, double cap, Cuts& cuts) const {
    const double all = double(weight_before(end));
    const double mean = (all - double(weight_before(cuts.back()))) / double(num_parts);
    const double most_of_rest = std::min(cap, kMaxMeanOfRest * mean);
    for (int64_t parts = num_parts; parts > 1; --parts) {
      const double done = double(weight_before(cuts.back()));
      const double part = (all - done) / double(parts);
      const double least = done + kMinPartWeight * part, later = double(parts - 1);
      cuts.push_back(next({.ideal = done + part,
                           .lowest = std::max(all - later * cap, least),
                           .lowest_of_dim_0 = std::max(all - later * most_of_rest, least),
                           .highest = std::min(done + cap, all)},
                          end));
    }
    cuts.push_back(end);
  }

  int64_t weight_before(int64_t at) const {
    const size_t i = size_t(
        std::partition_point(row_.begin(), row_.end(), [&](auto& s) { return s.end <= at; }) -
        row_.begin());
    return before_[i] +
           (i < row_.size() ? std::max<int64_t>(0, at - row_[i].begin) * row_[i].weight : 0);
  }

  // The weight before a position.
  struct Window {
    double ideal, lowest, lowest_of_dim_0, highest;
  };

  int64_t next(const Window& window, int64_t end) const {
    const size_t i = stretch_at(window.ideal);
    const Stretch& s = row_[i];
    const double at = double(s.begin) + (window.ideal - double(before_[i])) / double(s.weight);
    int64_t step = s.shape.numel();
    double lowest = window.lowest_of_dim_0;
    for (const int64_t extent : s.shape.dims()) {
      step /= extent;
      std::optional<int64_t> best;
      for (const int64_t border : rows_beside(s, at, step)) {
        const double weight = double(before_[i] + (border - s.begin) * s.weight);
        const bool nearer = !best || std::abs(double(border) - at) < std::abs(double(*best) - at);
        if (border % align_ == 0 && lowest <= weight && weight <= window.highest && nearer)
          best = border;
      }
      if (best) return *best;
      lowest = window.lowest;
    }
    return multiple_from(at, end);
  }

  size_t stretch_at(double weight) const {
    return size_t(std::upper_bound(before_.begin() + 1, before_.end() - 1, weight) -
                  before_.begin() - 1);
  }

  // The borders of rows of `step` elements, or of the stretch, before and after `at`.
  std::array<int64_t, 2> rows_beside(const Stretch& s, double at, int64_t step) const {
    const int64_t origin = s.begin - s.first;
    const int64_t row = int64_t(std::floor((at - double(origin)) / double(step)));
    return {std::clamp(origin + row * step, s.begin, s.end),
            std::clamp(origin + (row + 1) * step, s.begin, s.end)};
  }

  int64_t multiple_from(double at, int64_t end) const {
    return std::min(end, round_up(int64_t(std::ceil(at)), align_));
  }

  std::span<const Stretch> row_;
  int64_t end_, align_;
  std::vector<int64_t> before_;  // the weight of all stretches before each
};

}  // namespace

std::vector<int64_t> even_cuts(std::span<const Stretch> row, int64_t end, int64_t num_parts,
                               int64_t align) {
  ASHLAR_ASSERT(num_parts >= 1 && align >= 1);
  return Cutter(row, end, align).cut(num_parts);
}

}  // namespace ashlar
