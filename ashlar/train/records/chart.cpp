#include "ashlar/train/records/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/text.h"

namespace ashlar::train {
namespace {

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // The row of a value: 0 for the highest, rows - 1 for the lowest.
  int row_of(double value, int rows) const {
    const double share = high > low ? (high - value) / (high - low) : 0.5;
    return std::clamp(int(std::lround(share * (rows - 1))), 0, rows - 1);
  }
};

// Mean value of the steps of each column; NaN where there is none.
std::vector<double> column_means(const Curve& curve, int64_t first, int64_t last, int columns) {
  std::vector<double> sum(size_t(columns), 0.0), count(size_t(columns), 0.0);
  for (const auto& [step, value] : curve) {
    if (!std::isfinite(value)) continue;
    const auto c = size_t(std::min<int64_t>(
        columns - 1, (step - first) * columns / std::max<int64_t>(1, last - first)));
    sum[c] += value;
    count[c] += 1.0;
  }
  for (size_t c = 0; c < sum.size(); ++c) sum[c] = count[c] > 0.0 ? sum[c] / count[c] : NAN;
  return sum;
}

}  // namespace

std::string render_chart(const Curve& loss, const Curve& validation, int columns, int rows) {
  if (loss.size() < 2) return "";
  const int64_t first = loss.front().first, last = loss.back().first;
  const std::vector<double> trained = column_means(loss, first, last, columns);
  const std::vector<double> validated = column_means(validation, first, last, columns);
  Range range;
  for (const auto* means : {&trained, &validated})
    for (const double value : *means)
      if (std::isfinite(value)) range.add(value);
  std::vector<std::string> canvas(size_t(rows), std::string(size_t(columns), ' '));
  const auto draw = [&](const std::vector<double>& means, char mark) {
    for (size_t c = 0; c < means.size(); ++c)
      if (std::isfinite(means[c])) canvas[size_t(range.row_of(means[c], rows))][c] = mark;
  };
  draw(trained, '*');
  draw(validated, 'o');
  std::string text = fmt::format("{:>8} loss (*) and validation loss (o)\n", "");
  for (int r = 0; r < rows; ++r) {
    const double value = range.high - (range.high - range.low) * double(r) / double(rows - 1);
    text += fmt::format("{:>8.3f} |{}\n", value, canvas[size_t(r)]);
  }
  text += fmt::format("{:>8} +{}\n{:>8}  step {:<{}}{}", "", std::string(size_t(columns), '-'), "",
                      first, columns - 12, last);
  return text;
}

RunCurves read_curves(const std::string& metrics_jsonl) {
  std::map<int64_t, double> loss, validation;
  for (const std::string& line : split(metrics_jsonl, '\n')) {
    // A line that a kill cut short is no row.
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) continue;
    const auto add = [&](const char* key, std::map<int64_t, double>& curve) {
      if (row.contains(key) && row[key].is_number())
        curve[row["step"].get<int64_t>()] = row[key].get<double>();
    };
    add("loss", loss);
    add("validation_loss", validation);
  }
  return {{loss.begin(), loss.end()}, {validation.begin(), validation.end()}};
}

}  // namespace ashlar::train
