#include <cmath>

#include "ashlar/report/page.h"

namespace ashlar::report {

std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points,
                                               size_t columns) {
  if (points.size() <= 2 * columns + 2) return points;
  std::vector<std::pair<double, double>> kept = {points.front()};
  const double begin = points.front().first,
               width = (points.back().first - begin) / double(columns);
  // Keeps the extremes of points [first, last), in their order.
  const auto keep = [&](size_t first, size_t last) {
    size_t least = first, most = first;
    bool gap = false;
    for (size_t i = first; i < last; ++i) {
      const double y = points[i].second;
      if (!std::isfinite(y)) {
        gap = true;
        continue;
      }
      if (!(points[least].second <= y)) least = i;
      if (!(points[most].second >= y)) most = i;
    }
    kept.push_back(points[std::min(least, most)]);
    if (least != most) kept.push_back(points[std::max(least, most)]);
    if (gap) kept.emplace_back(points[last - 1].first, std::nan(""));
  };
  size_t first = 1;
  for (size_t column = 0; column < columns; ++column) {
    size_t last = first;
    const double end = begin + double(column + 1) * width;
    while (last + 1 < points.size() && points[last].first < end) ++last;
    if (last > first) keep(first, last);
    first = last;
  }
  if (first + 1 < points.size()) keep(first, points.size() - 1);
  kept.push_back(points.back());
  return kept;
}

}  // namespace ashlar::report
