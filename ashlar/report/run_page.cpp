#include "ashlar/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/statistics.h"
#include "ashlar/core/text.h"
#include "ashlar/report/expert_maps.h"

namespace ashlar::report {
namespace {

constexpr size_t kMaxSaves = 40, kMaxSkips = 200;

using Points = std::vector<std::pair<double, double>>;

bool has(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number();
}
double value_of(const Json& object, const char* key) {
  return has(object, key) ? object[key].get<double>() : std::nan("");
}

std::string text_of(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "?";
}

// Column `y` over steps, as far as a chart shows it.
Points over_steps(const RunRows& rows, StepColumn y, double factor = 1) {
  Points points;
  const auto& steps = rows.of(StepColumn::kStep);
  const auto& values = rows.of(y);
  for (size_t i = 0; i < steps.size(); ++i) points.emplace_back(steps[i], factor * values[i]);
  return thinned(points);
}

// The mean over windows of steps, which shows the trend of a noisy column.
Points smoothed(const RunRows& rows, StepColumn y, size_t windows = 300) {
  const auto& steps = rows.of(StepColumn::kStep);
  const auto& values = rows.of(y);
  const size_t size = std::max<size_t>(1, steps.size() / windows);
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

Points of_events(const RunRows& rows, std::string_view event, const char* key) {
  Points points;
  for (const Json& e : rows.events)
    if (e["event"] == event && has(e, "step") && has(e, key))
      points.emplace_back(e["step"].get<double>(), e[key].get<double>());
  std::stable_sort(points.begin(), points.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return thinned(points);
}

bool any(const RunRows& rows, StepColumn column) {
  const auto& values = rows.of(column);
  return std::any_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
}

// "loss", or "loss of NAME" where several runs share a chart.
std::string line_name(std::string_view what, const RecordedRun& run, size_t num_runs) {
  return num_runs == 1 ? std::string(what) : fmt::format("{} of {}", what, run.name);
}

void add_chart(std::span<const RecordedRun> runs, std::string title, std::string y_label,
               std::initializer_list<std::pair<StepColumn, const char*>> columns, double factor,
               std::vector<Item>& items) {
  LineChart chart{std::move(title), {"step"}, {std::move(y_label)}, {}, ""};
  for (const RecordedRun& run : runs)
    for (const auto& [column, name] : columns)
      if (any(run.rows, column))
        chart.lines.push_back(
            {line_name(name, run, runs.size()), over_steps(run.rows, column, factor)});
  if (!chart.lines.empty()) items.emplace_back(std::move(chart));
}

PageSection loss_section(std::span<const RecordedRun> runs) {
  PageSection section{"Loss", "", {}};
  LineChart chart{"Loss over steps", {"step"}, {"nats"}, {}, ""};
  for (const RecordedRun& run : runs) {
    if (!any(run.rows, StepColumn::kLoss)) continue;
    chart.lines.push_back(
        {line_name("loss", run, runs.size()), over_steps(run.rows, StepColumn::kLoss)});
    if (runs.size() == 1 && run.rows.num_steps() > 600)
      chart.lines.push_back({"mean of windows", smoothed(run.rows, StepColumn::kLoss)});
    const Points validation = of_events(run.rows, "evaluation", "validation_loss");
    if (!validation.empty())
      chart.lines.push_back({line_name("validation loss", run, runs.size()), validation, true});
  }
  chart.note =
      "Long runs show the least and the largest value of every column of the chart, so that no "
      "spike "
      "is lost.";
  if (!chart.lines.empty()) section.items.emplace_back(std::move(chart));
  add_chart(runs, "Losses of routers", "nats",
            {{StepColumn::kAuxLoss, "balancing loss"}, {StepColumn::kZLoss, "z-loss"}}, 1,
            section.items);
  add_chart(runs, "Gradient norm before clipping", "norm",
            {{StepColumn::kGradientNorm, "gradient norm"}}, 1, section.items);
  if (!section.items.empty())
    if (auto* norms = std::get_if<LineChart>(&section.items.back());
        norms && norms->title.starts_with("Gradient"))
      norms->y.log = true;
  add_chart(runs, "Learning rate", "learning rate", {{StepColumn::kLr, "learning rate"}}, 1,
            section.items);
  return section;
}

PageSection speed_section(std::span<const RecordedRun> runs) {
  PageSection section{"Speed", "", {}};
  add_chart(runs, "Tokens per second", "tokens/s", {{StepColumn::kTokensPerS, "tokens/s"}}, 1,
            section.items);
  add_chart(runs, "Share of the measured peak", "MFU, %", {{StepColumn::kMfu, "MFU"}}, 100,
            section.items);
  add_chart(runs, "Waiting inside steps", "ms",
            {{StepColumn::kDataStallS, "for data"}, {StepColumn::kCheckpointBlockedS, "for saves"}},
            1e3, section.items);
  add_chart(runs, "Time of a step", "ms", {{StepColumn::kStepS, "step"}}, 1e3, section.items);
  section.text =
      "MFU counts products and convolutions, and attention over the keys that a token may see "
      "(exact-causal), as a share of the rate that registers sustain.";
  return section;
}

PageSection experts_section(std::span<const RecordedRun> runs) {
  PageSection section{"Experts", "", {}};
  add_chart(runs, "How evenly experts are used", "entropy, 1: equally",
            {{StepColumn::kLoadEntropy, "entropy"}}, 1, section.items);
  add_chart(runs, "Busiest expert over the mean of its block", "ratio",
            {{StepColumn::kMaxLoad, "busiest expert"}}, 1, section.items);
  if (runs.size() == 1)
    for (HeatMap& map : expert_maps(runs[0].rows)) section.items.emplace_back(std::move(map));
  return section;
}

// The phases of the last saves, by their slowest rank.
BarChart save_phases(const RecordedRun& run) {
  BarChart chart{"Phases of saves, each by its slowest rank", "save of step", "ms", {}, {}, ""};
  std::vector<const Json*> saves;
  for (const Json& event : run.rows.events)
    if (event["event"] == "checkpoint" && event.contains("phases") && event["phases"].is_object())
      saves.push_back(&event);
  if (saves.size() > kMaxSaves) {
    chart.note = fmt::format("The last {} of {} saves.", kMaxSaves, saves.size());
    saves.erase(saves.begin(), saves.end() - int64_t(kMaxSaves));
  }
  std::vector<std::string> phases;
  for (const Json* save : saves)
    for (const auto& item : (*save)["phases"].items())
      if (std::find(phases.begin(), phases.end(), item.key()) == phases.end())
        phases.push_back(item.key());
  for (const std::string& phase : phases) chart.series.push_back({phase, {}});
  for (const Json* save : saves) {
    chart.categories.push_back(fmt::format("{:.0f}", value_of(*save, "step")));
    for (auto& [phase, values] : chart.series) {
      const auto found = (*save)["phases"].find(phase);
      values.push_back(found == (*save)["phases"].end() ? 0 : 1e3 * value_of(*found, "max_s"));
    }
  }
  return chart;
}

PageTable slow_ranks(const RecordedRun& run) {
  PageTable table{"Ranks that took much longer than others in a save",
                  {"step", "phase", "rank", "host", "seconds", "median of ranks"},
                  {},
                  ""};
  for (const Json& event : run.rows.events) {
    if (!event.contains("slow") || !event["slow"].is_array()) continue;
    for (const Json& slow : event["slow"])
      table.rows.push_back(
          {fmt::format("{:.0f}", value_of(event, "step")), slow.value("phase", std::string()),
           fmt::format("{:.0f}", value_of(slow, "rank")), slow.value("host", std::string()),
           fmt::format("{:.3g}", value_of(slow, "seconds")),
           fmt::format("{:.3g}", value_of(slow, "median_s"))});
  }
  return table;
}

PageSection saves_section(std::span<const RecordedRun> runs) {
  PageSection section{"Saves", "", {}};
  for (const RecordedRun& run : runs) {
    BarChart phases = save_phases(run);
    if (runs.size() > 1) phases.title += " of " + run.name;
    if (!phases.categories.empty()) section.items.emplace_back(std::move(phases));
    PageTable slow = slow_ranks(run);
    if (runs.size() > 1) slow.title += " of " + run.name;
    if (!slow.rows.empty()) section.items.emplace_back(std::move(slow));
  }
  return section;
}

// Bytes by tag from the last event of memory, if the run has one, and the peak over steps.
PageSection memory_section(std::span<const RecordedRun> runs) {
  PageSection section{"Memory", "", {}};
  BarChart chart{"Memory of rank 0 by purpose", "run", "MiB", {}, {}, ""};
  std::map<std::string, std::vector<double>> tags;
  for (const RecordedRun& run : runs) {
    const Json* last = nullptr;
    for (const Json& event : run.rows.events)
      if (event["event"] == "memory" && event.contains("tags") && event["tags"].is_object())
        last = &event;
    if (!last) continue;
    chart.categories.push_back(run.name);
    for (const auto& item : (*last)["tags"].items())
      if (item.value().is_number()) tags[item.key()].resize(chart.categories.size() - 1, 0);
    for (auto& [tag, values] : tags) {
      const double bytes = value_of((*last)["tags"], tag.c_str());
      values.push_back(std::isfinite(bytes) ? bytes / (1 << 20) : 0);
    }
  }
  for (auto& [tag, values] : tags) chart.series.emplace_back(tag, std::move(values));
  if (!chart.categories.empty()) section.items.emplace_back(std::move(chart));
  add_chart(runs, "Most memory held at once", "MiB", {{StepColumn::kMemoryPeakBytes, "peak"}},
            1.0 / (1 << 20), section.items);
  return section;
}

PageSection events_section(std::span<const RecordedRun> runs) {
  PageSection section{"Starts, skips and failures", "", {}};
  PageTable table{"", {"run", "event", "step", "what"}, {}, ""};
  for (const RecordedRun& run : runs)
    for (const Json& event : run.rows.events) {
      const std::string name = event["event"].get<std::string>();
      std::string what;
      if (name == "start") {
        what = fmt::format("kernels of {}, {} on {}", text_of(event, "isa"), text_of(event, "cpu"),
                           text_of(event, "host"));
      } else if (name == "skip" && event.contains("reason") && event["reason"].is_string()) {
        what = event["reason"].get<std::string>();
      } else if (name == "save_failed") {
        what = event.value("error", std::string());
      } else if (name != "resume") {
        continue;
      }
      if (table.rows.size() == kMaxSkips) table.note = fmt::format("The first {} rows.", kMaxSkips);
      if (table.rows.size() >= kMaxSkips) continue;
      table.rows.push_back(
          {run.name, name, has(event, "step") ? fmt::format("{:.0f}", value_of(event, "step")) : "",
           what});
    }
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

std::string last_finite(const RunRows& rows, StepColumn column, const char* format_text) {
  const auto& values = rows.of(column);
  for (size_t i = values.size(); i-- > 0;)
    if (std::isfinite(values[i])) return fmt::format(fmt::runtime(format_text), values[i]);
  return "none";
}

// The median of a column over the second half of the run.
std::string late_median(const RunRows& rows, StepColumn column, double factor,
                        const char* format_text) {
  std::vector<double> values;
  const auto& all = rows.of(column);
  for (size_t i = all.size() / 2; i < all.size(); ++i)
    if (std::isfinite(all[i])) values.push_back(factor * all[i]);
  if (values.empty()) return "none";
  return fmt::format(fmt::runtime(format_text), summarize(values).median);
}

// Where the last start of a run is; "" if its row does not say.
std::string machine_of(const RecordedRun& run) {
  const Json* start = nullptr;
  for (const Json& event : run.rows.events)
    if (event["event"] == "start") start = &event;
  for (const char* key : {"cpus", "memory_bytes", "ranks"})
    if (!start || !has(*start, key)) return "";
  const double ranks = value_of(*start, "ranks");
  return fmt::format("{:.0f} rank{} on {}: {}, {:.0f} CPUs, {}, kernels of {}", ranks,
                     ranks == 1 ? "" : "s", text_of(*start, "host"), text_of(*start, "cpu"),
                     value_of(*start, "cpus"),
                     format_bytes((*start)["memory_bytes"].get<int64_t>()), text_of(*start, "isa"));
}

void add_facts(const RecordedRun& run, size_t num_runs, Page& page) {
  const auto add = [&](const std::string& name, const std::string& value) {
    page.facts.emplace_back(line_name(name, run, num_runs), value);
  };
  if (const std::string machine = machine_of(run); !machine.empty()) add("Machine", machine);
  add("Steps", last_finite(run.rows, StepColumn::kStep, "{:.0f}"));
  add("Last loss", last_finite(run.rows, StepColumn::kLoss, "{:.4f}"));
  const Points validation = of_events(run.rows, "evaluation", "validation_loss");
  if (!validation.empty())
    add("Last validation loss", fmt::format("{:.4f}", validation.back().second));
  add("Tokens/s, median", late_median(run.rows, StepColumn::kTokensPerS, 1, "{:.0f}"));
  add("MFU, median", late_median(run.rows, StepColumn::kMfu, 100, "{:.1f} %"));
  int64_t skipped = 0, failed = 0;
  for (const Json& event : run.rows.events) {
    skipped += event["event"] == "skip";
    failed += event["event"] == "save_failed";
  }
  if (skipped) add("Skipped steps", std::to_string(skipped));
  if (failed) add("Failed saves", std::to_string(failed));
  if (run.rows.num_damaged) add("Damaged lines", std::to_string(run.rows.num_damaged));
}

}  // namespace

RecordedRun read_run(FileSystem& files, const std::string& directory) {
  const std::string path = join(directory, kRunFiles[0]);
  ASHLAR_REQUIRE(files.stat(path, LinkPolicy::kFollow), kData,
                 "{}: no metrics.jsonl; expected the directory of a run (train.run_dir)",
                 printable(directory));
  RecordedRun run;
  const size_t end = directory.find_last_not_of('/');
  const std::string trimmed = directory.substr(0, end == std::string::npos ? 0 : end + 1);
  run.name = trimmed.substr(trimmed.rfind('/') + 1);
  const auto mapping = files.map(path);
  const auto bytes = mapping->bytes();
  run.rows = read_rows({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ASHLAR_REQUIRE(run.rows.num_steps() > 0, kData, "{}: no row of a step", printable(path));
  const std::string recipe = join(directory, kRunFiles[1]);
  if (files.stat(recipe, LinkPolicy::kFollow)) run.recipe = read_text(files, recipe);
  return run;
}

Page run_page(std::span<const RecordedRun> runs) {
  Page page;
  page.title =
      runs.size() == 1 ? fmt::format("Run {}", runs[0].name) : fmt::format("{} runs", runs.size());
  if (runs.size() > 1)
    for (const RecordedRun& run : runs)
      page.subtitle += (page.subtitle.empty() ? "" : ", ") + run.name;
  for (const RecordedRun& run : runs) add_facts(run, runs.size(), page);
  add_sections({loss_section(runs), speed_section(runs), experts_section(runs), saves_section(runs),
                memory_section(runs), events_section(runs)},
               page);
  for (const RecordedRun& run : runs) {
    if (run.recipe.empty()) continue;
    PageTable table{"", {"recipe.toml"}, {}, ""};
    for (const std::string& line : split(run.recipe, '\n'))
      if (!line.empty()) table.rows.push_back({line});
    page.sections.push_back({line_name("Recipe", run, runs.size()), "", {std::move(table)}});
  }
  return page;
}

Page run_page(FileSystem& files, const std::vector<std::string>& directories) {
  std::vector<RecordedRun> runs;
  for (const std::string& directory : directories) runs.push_back(read_run(files, directory));
  return run_page(runs);
}

}  // namespace ashlar::report
