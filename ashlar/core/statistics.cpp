#include "ashlar/core/statistics.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ashlar/core/error.h"

namespace ashlar {

Summary summarize(std::span<const double> values) {
  ASHLAR_ASSERT(!values.empty());
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t count = sorted.size();
  const size_t rank = (99 * count + 99) / 100;  // 99 % of count, rounded up
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

double Window::largest() const {
  double largest = -std::numeric_limits<double>::infinity();
  for (const double value : values()) largest = std::max(largest, value);
  return largest;
}

void Window::add(double value) {
  values_[count_++ % values_.size()] = value;
}

void Window::restore(std::span<const double> values, size_t count) {
  ASHLAR_REQUIRE(values.size() <= count && (count == 0 || !values.empty()), kCorrupt,
                 "a saved window holds {} values after {}; expected 1 to {}", values.size(), count,
                 count);
  if (values.size() == std::min(count, values_.size())) {  // in the same positions
    std::copy(values.begin(), values.end(), values_.begin());
    count_ = count;
    return;
  }
  count_ = 0;
  for (size_t i = 0; i < values.size(); ++i) add(values[(count + i) % values.size()]);
}

}  // namespace ashlar
