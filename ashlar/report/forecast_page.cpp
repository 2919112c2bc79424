#include "ashlar/report/forecast_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::report {
namespace {

constexpr const char *kSearchFormat = "ashlar-search-1", *kStepFormat = "ashlar-simulated-step-1";
constexpr double kBytesOfAGiB = 1 << 30;
constexpr size_t kMostBars = 32;

double forecast_value(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : 0;
}
std::string forecast_text(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}
const Json& forecast_list(const Json& object, const char* key) {
  static const Json kNone = Json::array();
  return object.contains(key) && object[key].is_array() ? object[key] : kNone;
}
const Json& forecast_members(const Json& object, const char* key) {
  static const Json kNone = Json::object();
  return object.contains(key) && object[key].is_object() ? object[key] : kNone;
}

std::string keys_text(const Json& layout) {
  const std::string keys = forecast_text(layout, "keys");
  return keys.empty() ? "(the recipe as it is)" : keys;
}

struct TimePart {
  const char *member, *name;
};
constexpr TimePart kRankParts[] = {{"compute_s", "kernels"},
                                   {"exposed_s", "exposed communication"},
                                   {"waiting_s", "waits for other ranks"},
                                   {"between_s", "between steps"}};

// Where the time of ranks goes: a bar for each, of at most kMostBars.
BarChart rank_times(const Json& ranks, const std::function<std::string(size_t)>& name) {
  BarChart chart{"Where the time of a step goes", "ranks", "ms", {}, {}, ""};
  for (const TimePart& part : kRankParts)
    chart.series.emplace_back(part.name, std::vector<double>());
  for (size_t r = 0; r < std::min(ranks.size(), kMostBars); ++r) {
    chart.categories.push_back(name(r));
    for (size_t i = 0; i < chart.series.size(); ++i)
      chart.series[i].second.push_back(1e3 * forecast_value(ranks[r], kRankParts[i].member));
  }
  if (ranks.size() > kMostBars)
    chart.note = fmt::format("the first {} of {}", kMostBars, ranks.size());
  return chart;
}

// Bars of bytes by tag, in GiB or MiB.
BarChart memory_bars(std::string title, const Json& layouts,
                     const std::function<std::string(size_t)>& name) {
  double largest = 0;
  for (const Json& layout : layouts)
    largest = std::max(largest, forecast_value(forecast_members(layout, "memory_bytes"), "total"));
  const bool small = largest < 2 * kBytesOfAGiB;
  const double unit = small ? kBytesOfAGiB / 1024 : kBytesOfAGiB;
  BarChart chart{std::move(title), "ranks", small ? "MiB" : "GiB", {}, {}, ""};
  for (size_t i = 0; i < std::min(layouts.size(), kMostBars); ++i) {
    chart.categories.push_back(name(i));
    for (const auto& item : forecast_members(layouts[i], "memory_bytes").items()) {
      if (item.key() == "total" || item.key() == "rank" || !item.value().is_number()) continue;
      auto found = std::find_if(chart.series.begin(), chart.series.end(),
                                [&](const auto& series) { return series.first == item.key(); });
      if (found == chart.series.end())
        found = chart.series.insert(found, {item.key(), std::vector<double>(i, 0)});
      found->second.resize(i, 0);
      found->second.push_back(item.value().get<double>() / unit);
    }
  }
  for (auto& [tag, values] : chart.series) values.resize(chart.categories.size(), 0);
  return chart;
}

std::string class_name(const Json& ranks_of_class) {
  const Json& ranks = forecast_list(ranks_of_class, "ranks");
  return ranks.empty() ? "" : fmt::format("{} as {}", ranks.size(), ranks[0].dump());
}

PageSection best_section(const Json& json) {
  PageSection section{"Best layouts", "Keys go behind `ashlar train RECIPE`.", {}};
  const Json& best = forecast_list(json, "best");
  const auto number = [](size_t i) { return std::to_string(i + 1); };
  BarChart chart{"Time of a step, mean of the ranks", "layout", "ms", {}, {}, ""};
  for (const char* part : {"compute", "exposed", "waiting", "between"})
    chart.series.emplace_back(part, std::vector<double>());
  PageTable table{"", {"layout", "step, ms", "tokens/s", "MFU, %", "GiB", "keys"}, {}, ""};
  for (size_t i = 0; i < best.size(); ++i) {
    chart.categories.push_back(number(i));
    for (auto& [part, values] : chart.series)
      values.push_back(1e3 *
                       forecast_value(forecast_members(best[i], "mean_of_ranks_s"), part.c_str()));
    table.rows.push_back(
        {number(i), fmt::format("{:.3f}", 1e3 * forecast_value(best[i], "step_s")),
         format_thousands(int64_t(forecast_value(best[i], "tokens_per_s"))),
         fmt::format("{:.2f}", 100 * forecast_value(best[i], "mfu")),
         fmt::format("{:.3f}", forecast_value(forecast_members(best[i], "memory_bytes"), "total") /
                                   kBytesOfAGiB),
         keys_text(best[i])});
  }
  if (best.empty()) return section;
  section.items.emplace_back(std::move(chart));
  section.items.emplace_back(std::move(table));
  section.items.emplace_back(memory_bars("Memory of the fullest rank by tag", best, number));
  return section;
}

PageSection classes_section(const Json& json) {
  PageSection section{"Ranks of the best layout", "", {}};
  const Json& classes = forecast_list(json, "classes");
  if (classes.empty()) return section;
  const auto name = [&](size_t i) { return class_name(classes[i]); };
  section.items.emplace_back(rank_times(classes, name));
  section.items.emplace_back(memory_bars("Memory of a rank by tag", classes, name));
  return section;
}

PageSection neighbours_section(const Json& json) {
  PageSection section{"Why others lose", "One key of the best layout changed.", {}};
  BarChart chart{"Slower than the best layout", "changed key", "%", {}, {}, ""};
  chart.series.emplace_back("slower", std::vector<double>());
  PageTable table{"", {"key", "why", "reason"}, {}, ""};
  for (const Json& n : forecast_list(json, "neighbours")) {
    table.rows.push_back(
        {forecast_text(n, "key"), forecast_text(n, "why"), forecast_text(n, "reason")});
    const double slower = forecast_value(n, "slower");
    if (slower <= 0 || chart.categories.size() >= kMostBars) continue;
    chart.categories.push_back(forecast_text(n, "key"));
    chart.series[0].second.push_back(100 * slower);
  }
  if (!chart.categories.empty()) section.items.emplace_back(std::move(chart));
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

PageSection sensitivity_section(const Json& json) {
  PageSection section{"Numbers of the machine", "", {}};
  BarChart chart{"Change of the best layout's time by 10 % of a number", "number", "%", {}, {}, ""};
  chart.series.emplace_back("larger of the changes by -10 % and +10 %", std::vector<double>());
  PageTable table{"", {"number", "-10 %", "+10 %", "best at -10 %", "best at +10 %"}, {}, ""};
  for (const Json& s : forecast_list(json, "sensitivity")) {
    const double less = 100 * forecast_value(s, "less"), more = 100 * forecast_value(s, "more");
    table.rows.push_back({forecast_text(s, "number"), fmt::format("{:+.2f} %", less),
                          fmt::format("{:+.2f} %", more), forecast_text(s, "less_best"),
                          forecast_text(s, "more_best")});
    if (chart.categories.size() >= kMostBars) continue;
    chart.categories.push_back(forecast_text(s, "number"));
    chart.series[0].second.push_back(std::max(std::abs(less), std::abs(more)));
  }
  if (table.rows.empty()) return section;
  section.items.emplace_back(std::move(chart));
  section.items.emplace_back(std::move(table));
  return section;
}

PageSection counts_section(const Json& json) {
  PageSection section{"Search", "", {}};
  PageTable table{"", {"layouts", "number"}, {}, ""};
  for (const auto& item : forecast_members(json, "counts").items())
    if (item.value().is_number())
      table.rows.push_back({item.key(), format_thousands(item.value().get<int64_t>())});
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

PageSection provenance_section(const Json& json) {
  PageSection section{"What this rests on", "", {}};
  PageTable table{"", {"kind", "what"}, {}, ""};
  for (const auto& [key, kind] :
       {std::pair{"assumed", "assumed"}, {"never_measured", "never measured"}})
    for (const Json& text : forecast_list(json, key))
      if (text.is_string()) table.rows.push_back({kind, text.get<std::string>()});
  for (const char* shares : {"kernel_shares", "operation_shares"})
    for (const auto& item : forecast_members(json, shares).items())
      if (item.value().is_number())
        table.rows.push_back(
            {shares, fmt::format("{}: {:.1f} %", item.key(), 100 * item.value().get<double>())});
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

void add_search_sections(const Json& json, Page& page) {
  page.title = fmt::format("Search for {} on {:.0f} ranks of {}", forecast_text(json, "recipe"),
                           forecast_value(json, "ranks"), forecast_text(json, "machine"));
  page.facts.emplace_back("goal", forecast_text(json, "goal"));
  page.facts.emplace_back(
      "memory of a rank",
      fmt::format("{:.1f} GiB", forecast_value(json, "memory_bytes") / kBytesOfAGiB));
  page.facts.emplace_back("MFU", fmt::format("{}, of {}", forecast_text(json, "mfu_convention"),
                                             forecast_text(json, "peak_from")));
  if (forecast_list(json, "best").empty()) {
    page.banner = "No layout fits.";
    page.mood = Mood::kBad;
  }
  add_sections({best_section(json), neighbours_section(json), classes_section(json),
                sensitivity_section(json), counts_section(json), provenance_section(json)},
               page);
}

void add_step_sections(const Json& json, Page& page) {
  page.title = fmt::format("A simulated step on {}", forecast_text(json, "machine"));
  page.facts.emplace_back("step", fmt::format("{:.3f} ms", 1e3 * forecast_value(json, "step_s")));
  if (forecast_value(json, "tokens_per_s") > 0)
    page.facts.emplace_back("tokens a second",
                            format_thousands(int64_t(forecast_value(json, "tokens_per_s"))));
  page.facts.emplace_back("ranks", std::to_string(forecast_list(json, "ranks").size()));
  PageSection section{"Ranks", "The timeline is in the file of `--perfetto`.", {}};
  section.items.emplace_back(
      rank_times(forecast_list(json, "ranks"), [](size_t r) { return std::to_string(r); }));
  add_sections({std::move(section), provenance_section(json)}, page);
}

}  // namespace

bool is_forecast(const PlanFile& file) {
  const Json json = parse_json(file.text, file.path, ErrorKind::kData);
  const std::string format = json.is_object() ? forecast_text(json, "format") : "";
  return format == kSearchFormat || format == kStepFormat;
}

Page forecast_page(std::span<const PlanFile> files) {
  Page page;
  for (const PlanFile& file : files) {
    ASHLAR_REQUIRE(is_forecast(file), kData,
                   "{}: neither a search nor a simulated step; these go on a page with others of "
                   "their kind",
                   printable(file.path));
    const Json json = parse_json(file.text, file.path, ErrorKind::kData);
    if (forecast_text(json, "format") == kSearchFormat)
      add_search_sections(json, page);
    else
      add_step_sections(json, page);
    page.facts.emplace_back(
        "machine", fmt::format("{}, fingerprint {}, commit {}", forecast_text(json, "machine"),
                               forecast_text(json, "fingerprint"), forecast_text(json, "commit")));
  }
  if (files.size() > 1) page.title = fmt::format("{} forecasts", files.size());
  return page;
}

}  // namespace ashlar::report
