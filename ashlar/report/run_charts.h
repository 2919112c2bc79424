// Charts over the steps of runs: every step and, of long runs, their trend.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/report/page.h"
#include "ashlar/report/run_page.h"

namespace ashlar::report {

constexpr size_t kLongSteps = 200;  // from which on a run has means of windows

// The numbers `key` of these events over their steps, as far as a chart shows them.
std::vector<std::pair<double, double>> of_events(const RunRows& rows, std::string_view event,
                                                 const char* key);

// "loss", or "loss of NAME" where several runs share a chart.
std::string line_name(std::string_view what, const RecordedRun& run, size_t num_runs);

// Adds a column of a run, times a factor; of a long run faintly, behind the means of windows.
void add_column(const RecordedRun& run, size_t num_runs, StepColumn column, const char* name,
                double factor, LineChart& chart);

// Whether single values are so far above the others that a linear axis would flatten these.
bool has_spikes(const LineChart& chart);

// Where a single run was resumed, and where it skipped steps.
std::vector<PageMark> marks_of(std::span<const RecordedRun> runs);

// Adds a chart of the columns that any run has; its axis is logarithmic if told, or if it has
// spikes.
void add_chart(std::span<const RecordedRun> runs, std::string title, std::string y_label,
               std::initializer_list<std::pair<StepColumn, const char*>> columns, double factor,
               std::vector<Item>& items, bool log = false);

}  // namespace ashlar::report
