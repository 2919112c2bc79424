#include "ashlar/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/statistics.h"
#include "ashlar/core/text.h"
#include "ashlar/report/expert_maps.h"
#include "ashlar/report/run_charts.h"
#include "ashlar/report/run_saves.h"

namespace ashlar::report {
namespace {

constexpr size_t kMaxSkips = 200;
LineChart loss_chart(std::span<const RecordedRun> runs) {
  LineChart chart{"Loss over steps", {"step"}, {"nats"}, {}, "", marks_of(runs), true};
  bool thin = false;
  for (const RecordedRun& run : runs) {
    add_column(run, runs.size(), StepColumn::kLoss, "loss", 1, chart);
    const auto validation = of_events(run.rows, "evaluation", "validation_loss");
    if (!validation.empty())
      chart.lines.push_back({line_name("validation loss", run, runs.size()), validation, true});
    thin |= run.rows.num_steps() >= kLongSteps;
  }
  if (thin)
    chart.note =
        "Faint: every step, and of long runs the least and the largest value in each column of the "
        "chart, so that no spike is lost. Strong: means of windows.";
  chart.y.log = has_spikes(chart);
  return chart;
}

PageSection loss_section(std::span<const RecordedRun> runs) {
  PageSection section{"Loss", "", {}};
  if (LineChart chart = loss_chart(runs); !chart.lines.empty())
    section.items.emplace_back(std::move(chart));
  add_chart(runs, "Losses of routers", "nats",
            {{StepColumn::kAuxLoss, "balancing loss"}, {StepColumn::kZLoss, "z-loss"}}, 1,
            section.items);
  add_chart(runs, "Gradient norm before clipping", "norm",
            {{StepColumn::kGradientNorm, "gradient norm"}}, 1, section.items, true);
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
      const double bytes = number_of((*last)["tags"], tag.c_str());
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
        what = fmt::format("kernels of {}, {} on {}", text_in(event, "isa"), text_in(event, "cpu"),
                           text_in(event, "host"));
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
          {run.name, name,
           has_number(event, "step") ? fmt::format("{:.0f}", number_of(event, "step")) : "", what});
    }
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

std::optional<double> last_finite(const RunRows& rows, StepColumn column) {
  const auto& values = rows.of(column);
  for (size_t i = values.size(); i-- > 0;)
    if (std::isfinite(values[i])) return values[i];
  return std::nullopt;
}

// The median of a column over the second half of the run.
std::optional<double> late_median(const RunRows& rows, StepColumn column) {
  std::vector<double> values;
  const auto& all = rows.of(column);
  for (size_t i = all.size() / 2; i < all.size(); ++i)
    if (std::isfinite(all[i])) values.push_back(all[i]);
  if (values.empty()) return std::nullopt;
  return summarize(values).median;
}

// Where the last start of a run is; "" if its row does not say.
std::string machine_of(const RecordedRun& run) {
  const Json* start = nullptr;
  for (const Json& event : run.rows.events)
    if (event["event"] == "start") start = &event;
  for (const char* key : {"cpus", "memory_bytes", "ranks"})
    if (!start || !has_number(*start, key)) return "";
  const double ranks = number_of(*start, "ranks");
  return fmt::format("{:.0f} rank{} on {}: {}, {:.0f} CPUs, {}, kernels of {}", ranks,
                     ranks == 1 ? "" : "s", text_in(*start, "host"), text_in(*start, "cpu"),
                     number_of(*start, "cpus"),
                     format_bytes((*start)["memory_bytes"].get<int64_t>()), text_in(*start, "isa"));
}

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts facts_of(const RecordedRun& run) {
  Facts facts;
  const auto add = [&](const std::string& name, const std::string& value) {
    facts.emplace_back(name, value);
  };
  if (const std::string machine = machine_of(run); !machine.empty()) add("Machine", machine);
  add("Steps", format_thousands(int64_t(run.rows.of(StepColumn::kStep).back())));
  if (const auto& tokens = run.rows.of(StepColumn::kTokens); std::isfinite(tokens.back()))
    add("Tokens", format_thousands(int64_t(tokens.back())));
  if (const auto loss = last_finite(run.rows, StepColumn::kLoss))
    add("Last loss", fmt::format("{:.4f}", *loss));
  const auto validation = of_events(run.rows, "evaluation", "validation_loss");
  if (!validation.empty())
    add("Last validation loss", fmt::format("{:.4f}", validation.back().second));
  if (const auto rate = late_median(run.rows, StepColumn::kTokensPerS))
    add("Tokens/s, median", format_thousands(std::llround(*rate)));
  if (const auto mfu = late_median(run.rows, StepColumn::kMfu))
    add("MFU, median", fmt::format("{:.1f} %", 100 * *mfu));
  int64_t skipped = 0, failed = 0;
  for (const Json& event : run.rows.events) {
    skipped += event["event"] == "skip";
    failed += event["event"] == "save_failed";
  }
  if (skipped) add("Skipped steps", std::to_string(skipped));
  if (failed) add("Failed saves", std::to_string(failed));
  if (run.rows.num_damaged) add("Damaged lines", std::to_string(run.rows.num_damaged));
  return facts;
}

// The facts of several runs beside each other: a column for each that any run has.
PageSection runs_section(std::span<const RecordedRun> runs) {
  PageTable table{"", {"run"}, {}, ""};
  for (const RecordedRun& run : runs) {
    std::vector<std::string>& row = table.rows.emplace_back(table.columns.size());
    row[0] = run.name;
    for (auto& [name, value] : facts_of(run)) {
      const auto column = size_t(std::find(table.columns.begin(), table.columns.end(), name) -
                                 table.columns.begin());
      if (column == table.columns.size()) {
        table.columns.push_back(name);
        row.emplace_back();
      }
      row[column] = value;
    }
  }
  for (auto& row : table.rows) row.resize(table.columns.size());
  return {"Runs", "", {std::move(table)}};
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
  run.device = read_device_times(files, directory);
  return run;
}

Page run_page(std::span<const RecordedRun> runs) {
  Page page;
  page.title =
      runs.size() == 1 ? fmt::format("Run {}", runs[0].name) : fmt::format("{} runs", runs.size());
  if (runs.size() > 1)
    for (const RecordedRun& run : runs)
      page.subtitle += (page.subtitle.empty() ? "" : ", ") + run.name;
  if (runs.size() == 1)
    page.facts = facts_of(runs[0]);
  else
    page.sections.push_back(runs_section(runs));
  add_sections(
      {loss_section(runs), speed_section(runs), device_section(runs), experts_section(runs),
       saves_section(runs), memory_section(runs), events_section(runs)},
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
