#include "ashlar/report/run_saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace ashlar::report {
namespace {

constexpr size_t kMaxSaves = 40;

// The last saves that say how long their phases took.
std::vector<const Json*> last_saves(const RecordedRun& run) {
  std::vector<const Json*> saves;
  for (const Json& event : run.rows.events)
    if (event["event"] == "checkpoint" && event.contains("phases") && event["phases"].is_object())
      saves.push_back(&event);
  if (saves.size() > kMaxSaves) saves.erase(saves.begin(), saves.end() - int64_t(kMaxSaves));
  return saves;
}

std::string milliseconds(const Json& times, const char* key) {
  return has_number(times, key) ? fmt::format("{:.4g}", 1e3 * number_of(times, key))
                                : std::string();
}

// The phases of the last saves, by their slowest rank.
BarChart save_phases(const RecordedRun& run) {
  BarChart chart{"Phases of saves, each by its slowest rank", "save of step", "ms", {}, {}, ""};
  const std::vector<const Json*> saves = last_saves(run);
  if (saves.size() == kMaxSaves) chart.note = fmt::format("The last {} saves.", kMaxSaves);
  std::vector<std::string> phases;
  for (const Json* save : saves)
    for (const auto& item : (*save)["phases"].items())
      if (std::find(phases.begin(), phases.end(), item.key()) == phases.end())
        phases.push_back(item.key());
  for (const std::string& phase : phases) chart.series.push_back({phase, {}});
  for (const Json* save : saves) {
    chart.categories.push_back(fmt::format("{:.0f}", number_of(*save, "step")));
    for (auto& [phase, values] : chart.series) {
      const auto found = (*save)["phases"].find(phase);
      values.push_back(found == (*save)["phases"].end() ? 0 : 1e3 * number_of(*found, "max_s"));
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
          {fmt::format("{:.0f}", number_of(event, "step")), slow.value("phase", std::string()),
           fmt::format("{:.0f}", number_of(slow, "rank")), slow.value("host", std::string()),
           fmt::format("{:.3g}", number_of(slow, "seconds")),
           fmt::format("{:.3g}", number_of(slow, "median_s"))});
  }
  return table;
}

// Every phase of the last saves: the middle of the ranks, and the slowest one.
PageTable save_ranks(const RecordedRun& run) {
  PageTable table{"Saves by phase and rank",
                  {"save of step", "phase", "median of ranks, ms", "slowest, ms", "its rank"},
                  {},
                  ""};
  for (const Json* save : last_saves(run))
    for (const auto& [phase, times] : (*save)["phases"].items())
      table.rows.push_back(
          {fmt::format("{:.0f}", number_of(*save, "step")), phase, milliseconds(times, "median_s"),
           milliseconds(times, "max_s"),
           has_number(times, "rank") ? fmt::format("{:.0f}", number_of(times, "rank")) : ""});
  return table;
}

}  // namespace

PageSection saves_section(std::span<const RecordedRun> runs) {
  PageSection section{"Saves", "", {}};
  for (const RecordedRun& run : runs) {
    BarChart phases = save_phases(run);
    if (runs.size() > 1) phases.title += " of " + run.name;
    if (!phases.categories.empty()) section.items.emplace_back(std::move(phases));
    PageTable ranks = save_ranks(run);
    if (runs.size() > 1) ranks.title += " of " + run.name;
    if (!ranks.rows.empty()) section.items.emplace_back(std::move(ranks));
    PageTable slow = slow_ranks(run);
    if (runs.size() > 1) slow.title += " of " + run.name;
    if (!slow.rows.empty()) section.items.emplace_back(std::move(slow));
  }
  return section;
}

}  // namespace ashlar::report
