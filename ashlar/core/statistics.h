// Order statistics of repeated measurements, and a window over the last values of a sequence.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ashlar {

// p99 is the nearest rank: the smallest value that at least 99% of the values do not exceed.
struct Summary {
  double min, median, mean, p99, max;
  size_t count;
};
Summary summarize(std::span<const double> values);  // at least one value

// The last `size` values.
class Window {
 public:
  explicit Window(size_t size);
  bool full() const { return count_ >= values_.size(); }
  double largest() const;  // minus infinity where there is none
  void add(double value);
  std::span<const double> values() const {
    return {values_.data(), full() ? values_.size() : count_};
  }
  size_t count() const { return count_; }
  // Restores what values() and count() of a window returned; a window of another size takes the
  // newest values.  kCorrupt if no window could hold so many values after so many.
  void restore(std::span<const double> values, size_t count);

 private:
  std::vector<double> values_;  // ring
  size_t count_ = 0;
};

}  // namespace ashlar
