// A plot of lines over sizes that double, as SVG: both axes logarithmic, a marker at every point.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ashlar::report {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x and y above 0
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

// At most eight series look different.
// Errors   kConfig: no point at all, or one that is not above 0.
std::string to_svg(const Plot& plot);

}  // namespace ashlar::report
