#include "ashlar/core/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ashlar/core/error.h"

namespace ashlar {

Summary summarize(std::span<const double> values) {
  ASHLAR_ASSERT(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t count = sorted.size();
  const size_t rank = (99 * count + 99) / 100;  // of count, rounded up
  return {.min = sorted.front(),
          .median = 0.5 * (sorted[(count - 1) / 2] + sorted[count / 2]),
          .mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(count),
          .p99 = sorted[rank - 1],
          .max = sorted.back(),
          .count = count};
}

Window::Window(size_t size) : values_(size) {
  ASHLAR_ASSERT(size > 0);
}

double Window::z_score(double value) const {
  if (!full()) return 0;
  const double n = static_cast<double>(values_.size());
  const double mean = std::accumulate(values_.begin(), values_.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values_) squares += (v - mean) * (v - mean);
  const double tiny = std::max(1e-6 * std::abs(mean), 1e-12);
  return (value - mean) / std::max(std::sqrt(squares / n), tiny);
}

void Window::add(double value) {
  values_[count_++ % values_.size()] = value;
}

void Window::restore(std::span<const double> values, size_t count) {
  ASHLAR_REQUIRE(values.size() <= count && (count == 0 || !values.empty()), kCorrupt,
                 "a saved window holds {} values after {}; expected 1 to {}", values.size(), count,
                 count);
  if (values.size() == std::min(count, values_.size())) {  // the same places: the same sums
    std::copy(values.begin(), values.end(), values_.begin());
    count_ = count;
    return;
  }
  count_ = 0;
  for (size_t i = 0; i < values.size(); ++i) add(values[(count + i) % values.size()]);
}

}  // namespace ashlar
