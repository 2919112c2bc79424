#include "ashlar/report/run_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ashlar::report {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr size_t kWindows = 100;  // of the means of a long run

// Column `y` over steps, as far as a chart shows it.
Points over_steps(const RunRows& rows, StepColumn y, double factor = 1) {
  Points points;
  const auto& steps = rows.of(StepColumn::kStep);
  const auto& values = rows.of(y);
  for (size_t i = 0; i < steps.size(); ++i) points.emplace_back(steps[i], factor * values[i]);
  return thinned(points);
}

size_t window_of(const RunRows& rows) {
  return std::max<size_t>(1, rows.num_steps() / kWindows);
}

// The mean over windows of steps, which shows the trend of a noisy column.
Points smoothed(const RunRows& rows, StepColumn y) {
  const auto& steps = rows.of(StepColumn::kStep);
  const auto& values = rows.of(y);
  const size_t size = window_of(rows);
  Points points;
  for (size_t begin = 0; begin < steps.size(); begin += size) {
    double sum = 0, count = 0;
    const size_t end = std::min(steps.size(), begin + size);
    for (size_t i = begin; i < end; ++i)
      if (std::isfinite(values[i])) sum += values[i], ++count;
    points.emplace_back(steps[(begin + end - 1) / 2], count > 0 ? sum / count : std::nan(""));
  }
  return points;
}

bool any(const RunRows& rows, StepColumn column) {
  const auto& values = rows.of(column);
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

}  // namespace

Points of_events(const RunRows& rows, std::string_view event, const char* key) {
  Points points;
  for (const Json& e : rows.events)
    if (e["event"] == event && has_number(e, "step") && has_number(e, key))
      points.emplace_back(e["step"].get<double>(), e[key].get<double>());
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return thinned(points);
}

std::string line_name(std::string_view what, const RecordedRun& run, size_t num_runs) {
  return num_runs == 1 ? std::string(what) : fmt::format("{} of {}", what, run.name);
}

void add_column(const RecordedRun& run, size_t num_runs, StepColumn column, const char* name,
                double factor, LineChart& chart) {
  if (!any(run.rows, column)) return;
  const std::string line = line_name(name, run, num_runs);
  const bool calm = column == StepColumn::kLr || column == StepColumn::kMemoryPeakBytes;
  if (run.rows.num_steps() < kLongSteps || calm) {
    chart.lines.push_back({line, over_steps(run.rows, column, factor)});
    return;
  }
  Points means = smoothed(run.rows, column);
  for (auto& [step, value] : means) value *= factor;
  Line raw{line, over_steps(run.rows, column, factor), false, {}, -1, true};
  if (num_runs > 1) raw.guide_of = int(chart.lines.size()) + 1;
  chart.lines.push_back(std::move(raw));
  chart.lines.push_back({num_runs > 1 ? line : fmt::format("mean of {} steps", window_of(run.rows)),
                         std::move(means)});
}

bool has_spikes(const LineChart& chart) {
  constexpr double kFar = 20;
  std::vector<double> values;
  for (const Line& line : chart.lines)
    for (const auto& [x, y] : line.points)
      if (std::isfinite(y)) values.push_back(y);
  if (values.empty() || *std::min_element(values.begin(), values.end()) <= 0) return false;
  const auto middle = values.begin() + long(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double median = *middle;
  return *std::max_element(values.begin(), values.end()) > kFar * median;
}

std::vector<PageMark> marks_of(std::span<const RecordedRun> runs) {
  std::vector<PageMark> marks;
  if (runs.size() != 1) return marks;
  for (const Json& event : runs[0].rows.events)
    for (const auto& [name, mark] : {std::pair("resume", "resumed"), {"skip", "skipped"}})
      if (event["event"] == name && has_number(event, "step"))
        marks.push_back({number_of(event, "step"), mark});
  return marks;
}

void add_chart(std::span<const RecordedRun> runs, std::string title, std::string y_label,
               std::initializer_list<std::pair<StepColumn, const char*>> columns, double factor,
               std::vector<Item>& items, bool log) {
  LineChart chart{std::move(title), {"step"}, {std::move(y_label), log}, {}, ""};
  for (const RecordedRun& run : runs)
    for (const auto& [column, name] : columns)
      if (columns.size() == 1)
        add_column(run, runs.size(), column, name, factor, chart);
      else if (any(run.rows, column))
        chart.lines.push_back(
            {line_name(name, run, runs.size()), over_steps(run.rows, column, factor)});
  chart.y.log = log || has_spikes(chart);
  if (!chart.lines.empty()) items.emplace_back(std::move(chart));
}

}  // namespace ashlar::report
