// How it works.  Ranks that need the same memory are a class.  The charts of one plan show its
// classes, of very many those that need most; the charts of several plans show of each the class
// that needs most.
#include "ashlar/report/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/report/forecast_page.h"

namespace ashlar::report {
namespace {

constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
constexpr size_t kMostClasses = 32;  // in charts of one plan

double number_at(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : 0;
}
std::string text_at(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}
const Json& object_at(const Json& object, const char* key) {
  static const Json kEmpty = Json::object();
  return object.contains(key) && object[key].is_object() ? object[key] : kEmpty;
}

struct RecordedPlan {
  std::string name, file;  // for charts; of the file
  Json json;
};

RecordedPlan read_plan(const PlanFile& read) {
  const auto& [path, text] = read;
  RecordedPlan plan;
  plan.name = plan.file = path.substr(path.rfind('/') + 1);
  plan.json = parse_json(text, path, ErrorKind::kData);
  const Json& json = plan.json;
  bool good = json.is_object() && json.contains("parallel") && json["parallel"].is_object() &&
              json.contains("classes") && json["classes"].is_array() && !json["classes"].empty();
  for (size_t i = 0; good && i < json["classes"].size(); ++i) {
    const Json& ranks = json["classes"][i];
    good = ranks.is_object() && ranks.contains("ranks") && ranks["ranks"].is_array() &&
           !ranks["ranks"].empty() && ranks["ranks"][0].is_number_integer();
  }
  ASHLAR_REQUIRE(good, kData,
                 "{}: no plan; expected what `ashlar plan dry-run, simulate or "
                 "search --json` prints",
                 printable(path));
  return plan;
}

// A class of a plan's ranks as a category of charts.
struct Shown {
  const RecordedPlan* plan;
  const Json* ranks;  // the class
  std::string name;
};

double total_memory(const Json& ranks) {
  return number_at(object_at(ranks, "memory_bytes"), "total");
}

std::string name_of_class(const Json& ranks) {
  const Json& list = ranks["ranks"];
  if (list.size() == 1) return "rank " + list[0].dump();
  return fmt::format("{} ranks, as rank {}", list.size(), list[0].dump());
}

std::vector<Shown> shown_classes(std::span<const RecordedPlan> plans) {
  const auto needs_less = [](const Json& a, const Json& b) {
    return total_memory(a) < total_memory(b);
  };
  std::vector<Shown> shown;
  for (const RecordedPlan& plan : plans) {
    const Json& classes = plan.json["classes"];
    if (plans.size() == 1) {
      for (const Json& ranks : classes) shown.push_back({&plan, &ranks, name_of_class(ranks)});
    } else {
      const auto largest = std::max_element(classes.begin(), classes.end(), needs_less);
      shown.push_back({&plan, &*largest, plan.name});
    }
  }
  while (plans.size() == 1 && shown.size() > kMostClasses)
    shown.erase(std::min_element(shown.begin(), shown.end(), [&](const Shown& a, const Shown& b) {
      return needs_less(*a.ranks, *b.ranks);
    }));
  return shown;
}

// "pp 4 x dp 8, ep 4, zero 1": axes above 1, and what differs from the usual.
std::string layout_of(const Json& parallel) {
  std::string text;
  for (const char* axis : {"pp", "dp", "cp", "tp", "tsp"})
    if (const double size = number_at(parallel, axis); size > 1)
      text += fmt::format("{}{} {:.0f}", text.empty() ? "" : " x ", axis, size);
  if (text.empty()) text = "one rank";
  if (number_at(parallel, "ep") > 1) text += fmt::format(", ep {:.0f}", number_at(parallel, "ep"));
  if (number_at(parallel, "zero") > 0)
    text += fmt::format(", zero {:.0f}", number_at(parallel, "zero"));
  if (number_at(parallel, "pp") > 1) text += ", " + text_at(parallel, "schedule");
  return text;
}

// A bar for each class: the parts that `parts_of` names, with their values.
template <typename PartsOf>
BarChart bars_of(std::span<const Shown> classes, std::string title, std::string unit,
                 PartsOf parts_of) {
  BarChart chart{std::move(title), "ranks", std::move(unit), {}, {}, ""};
  std::map<std::string, std::vector<double>> series;
  for (const Shown& shown : classes) {
    chart.categories.push_back(shown.name);
    for (const auto& [part, value] : parts_of(*shown.ranks)) {
      auto& values = series[part];
      values.resize(chart.categories.size(), 0);
      values.back() += value;
    }
  }
  for (auto& [part, values] : series) {
    values.resize(chart.categories.size(), 0);
    if (std::any_of(values.begin(), values.end(), [](double v) { return v > 0; }))
      chart.series.emplace_back(part, std::move(values));
  }
  return chart;
}

using Parts = std::vector<std::pair<std::string, double>>;

Parts memory_parts(const Json& ranks, double unit_bytes) {
  Parts parts;
  for (const auto& item : object_at(ranks, "memory_bytes").items())
    if (item.key() != "total" && item.value().is_number())
      parts.emplace_back(item.key(), item.value().get<double>() / unit_bytes);
  return parts;
}

PageSection memory_of(std::span<const Shown> classes) {
  PageSection section{"Memory", "", {}};
  double largest = 0;
  for (const Shown& shown : classes) largest = std::max(largest, total_memory(*shown.ranks));
  const bool small = largest < 2 * kGiB;
  const double unit_bytes = small ? kMiB : kGiB;
  const std::string unit = small ? "MiB" : "GiB";
  section.items.emplace_back(
      bars_of(classes, "Memory of a rank by tag", unit,
              [&](const Json& ranks) { return memory_parts(ranks, unit_bytes); }));
  PageTable table{"", {"ranks", unit, "allocations", "workspace is fullest in"}, {}, ""};
  for (const Shown& shown : classes)
    table.rows.push_back({shown.name,
                          fmt::format("{:.3f}", total_memory(*shown.ranks) / unit_bytes),
                          fmt::format("{:.0f}", number_at(*shown.ranks, "allocations")),
                          text_at(*shown.ranks, "workspace_peak")});
  section.items.emplace_back(std::move(table));
  return section;
}

const Json& traffic_rows(const Json& ranks) {
  static const Json kNone = Json::array();
  return ranks.contains("traffic") && ranks["traffic"].is_array() ? ranks["traffic"] : kNone;
}

PageSection traffic_of(std::span<const Shown> classes) {
  PageSection section{"Traffic", "", {}};
  const auto parts_by = [](const char* key) {
    return [key](const Json& ranks) {
      Parts parts;
      for (const Json& row : traffic_rows(ranks))
        parts.emplace_back(text_at(row, key), number_at(row, "received_bytes") / kMiB);
      return parts;
    };
  };
  BarChart axes =
      bars_of(classes, "Bytes that a rank receives in a step, by axis", "MiB", parts_by("axis"));
  if (axes.series.empty()) return section;
  section.items.emplace_back(std::move(axes));
  section.items.emplace_back(bars_of(classes, "The same by purpose", "MiB", parts_by("label")));
  PageTable table{
      "",
      {"ranks", "axis", "of", "collective", "for", "launches", "sent, MiB", "received, MiB"},
      {},
      ""};
  for (const Shown& shown : classes)
    for (const Json& row : traffic_rows(*shown.ranks))
      table.rows.push_back({shown.name, text_at(row, "axis"),
                            fmt::format("{:.0f}", number_at(row, "ranks")),
                            text_at(row, "collective"), text_at(row, "label"),
                            fmt::format("{:.0f}", number_at(row, "launches")),
                            fmt::format("{:.3f}", number_at(row, "sent_bytes") / kMiB),
                            fmt::format("{:.3f}", number_at(row, "received_bytes") / kMiB)});
  section.items.emplace_back(std::move(table));
  return section;
}

PageSection work_of(std::span<const Shown> classes) {
  PageSection section{"Work", "", {}};
  const auto parts_by = [](const char* key, double unit) {
    return [key, unit](const Json& ranks) {
      Parts parts;
      for (const auto& item : object_at(object_at(ranks, "step"), "kernels").items())
        parts.emplace_back(item.key(), number_at(item.value(), key) / unit);
      return parts;
    };
  };
  section.items.emplace_back(
      bars_of(classes, "Arithmetic of a rank's step, by kernel", "GFLOP", parts_by("flop", 1e9)));
  section.items.emplace_back(bars_of(classes, "Memory traffic of a rank's step, by kernel", "GiB",
                                     parts_by("bytes", kGiB)));
  return section;
}

const machine::Quantity* first_known(const machine::Profile& machine,
                                     std::initializer_list<std::string> keys) {
  for (const std::string& key : keys)
    if (const machine::Quantity* quantity = machine.find(key); quantity && quantity->value > 0)
      return quantity;
  return nullptr;
}

// The least times of a step on the machine.  A kernel takes at least its flop over the rate of
// products, and its bytes over the memory bandwidth.
PageSection times_of(std::span<const Shown> classes, const machine::Profile& machine) {
  PageSection section{"Least times", "", {}};
  const auto* memory = first_known(machine, {"memory.triad", "memory.copy", "device.peak_memory"});
  const auto rate_of = [&](const RecordedPlan& plan) {
    const std::string type = text_at(plan.json, "precision") == "bf16" ? "bf16" : "fp32";
    return first_known(machine, {"compute.sustained_" + type, "compute.achievable_" + type,
                                 "device.peak_" + type});
  };
  const auto* link = first_known(machine, {"topology.link"});
  if (!memory || !rate_of(*classes[0].plan)) return section;
  BarChart chart{"Least time of a rank's step", "ranks", "ms", {}, {}, ""};
  Parts parts;
  chart.series = {{"kernels, by arithmetic", {}}, {"kernels, by memory", {}}, {"links", {}}};
  for (const Shown& shown : classes) {
    const auto* rate = rate_of(*shown.plan);
    if (!rate) continue;
    double arithmetic = 0, bytes = 0, links = 0;
    for (const auto& item : object_at(object_at(*shown.ranks, "step"), "kernels").items()) {
      const double flop_ms = number_at(item.value(), "flop") / rate->value * 1e-9,
                   bytes_ms = number_at(item.value(), "bytes") / memory->value * 1e-6;
      (flop_ms > bytes_ms ? arithmetic : bytes) += std::max(flop_ms, bytes_ms);
    }
    for (const Json& row : traffic_rows(*shown.ranks))
      links += link ? number_at(row, "received_bytes") / link->value * 1e-6 : 0;
    chart.categories.push_back(shown.name);
    chart.series[0].second.push_back(arithmetic);
    chart.series[1].second.push_back(bytes);
    chart.series[2].second.push_back(links);
  }
  if (!link) chart.series.pop_back();
  const auto named = [](const char* what, const machine::Quantity& q) {
    return fmt::format("{} {:.4g} {} ({})", what, q.value, q.unit, to_string(q.origin));
  };
  section.text = fmt::format(
      "What the numbers of the machine {} allow at best: {}, {}{}. No forecast: kernels reach "
      "less, "
      "collectives may run beside kernels, and ranks wait for each other.",
      machine.name, named("products at", *rate_of(*classes[0].plan)), named("memory at", *memory),
      link ? ", " + named("a link at", *link) : "");
  section.items.emplace_back(std::move(chart));
  return section;
}

PageSection saves_of(std::span<const RecordedPlan> plans) {
  PageSection section{"Saves", "", {}};
  PageTable table{"", {"plan", "number", "value"}, {}, ""};
  for (const RecordedPlan& plan : plans)
    for (const auto& item : object_at(plan.json, "checkpoint").items())
      if (item.value().is_number())
        table.rows.push_back(
            {plan.name, item.key(), format_thousands(item.value().get<int64_t>())});
  tidy({"plan"}, table);
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

// Plans are called by their layouts, if these differ, else by their files.
void name_by_layout(std::vector<RecordedPlan>& plans) {
  std::vector<std::string> layouts;
  for (const RecordedPlan& plan : plans)
    layouts.push_back(layout_of(object_at(plan.json, "parallel")));
  for (const std::string& layout : layouts)
    if (std::count(layouts.begin(), layouts.end(), layout) > 1) return;
  for (size_t i = 0; i < plans.size(); ++i) plans[i].name = layouts[i];
}

void add_plan_facts(std::span<const RecordedPlan> plans, Page& page) {
  const auto ranks_of = [](const RecordedPlan& plan) {
    return fmt::format("{:.0f} ranks", number_at(plan.json, "ranks"));
  };
  const auto add = [&](const char* name, const std::string& value) {
    page.facts.emplace_back(name, value);
  };
  if (plans.size() > 1) {
    for (const RecordedPlan& plan : plans)
      page.facts.emplace_back(plan.file,
                              layout_of(object_at(plan.json, "parallel")) + ", " + ranks_of(plan));
    return;
  }
  add("layout", layout_of(object_at(plans[0].json, "parallel")));
  add("size", ranks_of(plans[0]));
  add("parameters", format_count(number_at(object_at(plans[0].json, "model"), "parameters")));
  add("tokens a step", format_thousands(int64_t(number_at(plans[0].json, "tokens_per_step"))));
  add("precision", text_at(plans[0].json, "precision"));
}

}  // namespace

Page plan_page(std::span<const PlanFile> files, const machine::Profile* machine) {
  if (is_forecast(files[0])) return forecast_page(files);
  std::vector<RecordedPlan> plans;
  for (const PlanFile& file : files) plans.push_back(read_plan(file));
  Page page;
  const std::string recipe = text_at(plans[0].json, "recipe");
  page.title =
      plans.size() == 1 ? fmt::format("Plan of {}", recipe) : fmt::format("{} plans", plans.size());
  name_by_layout(plans);
  const std::vector<Shown> classes = shown_classes(plans);
  if (plans.size() > 1)
    page.subtitle = "Of each plan, the ranks that need most memory are shown.";
  else if (classes.size() < plans[0].json["classes"].size())
    page.subtitle = fmt::format("Of {} kinds of ranks, the {} that need most memory are shown.",
                                plans[0].json["classes"].size(), classes.size());
  add_plan_facts(plans, page);
  std::vector<PageSection> sections = {memory_of(classes)};
  if (machine) sections.push_back(times_of(classes, *machine));
  sections.push_back(work_of(classes));
  sections.push_back(traffic_of(classes));
  sections.push_back(saves_of(plans));
  add_sections(std::move(sections), page);
  return page;
}

}  // namespace ashlar::report
