// Rates over sizes, limits that follow from the numbers of a profile, and storage.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::Quantity;
using machine::RateCurve;

const Quantity* first_of(const Profile& profile, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const Quantity* quantity = profile.find(key)) return quantity;
  return nullptr;
}

std::string first_word(const std::string& subject) {
  return subject.substr(0, subject.find(' '));
}

std::string heading_of(const std::string& word) {
  const std::pair<const char*, const char*> known[] = {{"stream", "Memory bandwidth"},
                                                       {"memory", "Memory bandwidth"},
                                                       {"product", "Products"},
                                                       {"products", "Products"},
                                                       {"launch", "Launches"},
                                                       {"wake", "Launches"},
                                                       {"norm", "Norms"},
                                                       {"adamw", "Optimizer"},
                                                       {"Newton-Schulz", "Optimizer"}};
  for (const auto& [name, heading] : known)
    if (word == name) return heading;
  std::string heading = word;
  if (!heading.empty()) heading[0] = char(std::toupper(static_cast<unsigned char>(heading[0])));
  return heading;
}

// The axis for these values of a profile's unit.
PageAxis axis_for(const std::string& unit, const std::vector<double>& values, double log_from) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const bool log = !values.empty() && *low > 0 && *high >= log_from * *low;
  return {unit == "B" ? "bytes" : unit, log,
          !log ? Ticks::kDecimal : (unit == "B" ? Ticks::kBytes : Ticks::kDoubling)};
}

struct NamedRate {
  std::string name;
  const Profile* profile;
  const RateCurve* curve;
};

LineChart rate_chart(std::string title, const std::vector<NamedRate>& curves) {
  LineChart chart{std::move(title), {}, {}, {}, ""};
  std::vector<double> at, rates;
  bool ranged = false;
  for (const auto& [name, profile, curve] : curves) {
    std::vector<machine::RatePoint> points = curve->points;
    std::sort(points.begin(), points.end(),
              [](const auto& a, const auto& b) { return a.at < b.at; });
    Line line{name, {}, true};
    for (const machine::RatePoint& p : points) {
      line.points.emplace_back(p.at, p.median);
      line.range.emplace_back(std::min(p.p10, p.p90), std::max(p.p10, p.p90));
      ranged |= p.p10 != p.p90;
      at.push_back(p.at);
      rates.push_back(p.median);
    }
    chart.lines.push_back(std::move(line));
  }
  chart.x = axis_for(curves[0].curve->at_unit, at, 4);
  chart.y = axis_for(curves[0].curve->unit, rates, 30);
  if (chart.y.ticks == Ticks::kDoubling) chart.y.ticks = Ticks::kDecimal;
  if (ranged)
    chart.note = "Points are medians, bands from the 10th to the 90th percentile.";
  else
    for (Line& line : chart.lines) line.range.clear();
  return chart;
}

PageTable rate_sources(const std::vector<NamedRate>& curves) {
  PageTable table{"Largest rates and sources of the curves",
                  {"curve", "largest", "unit", "at", "spread there", "threads", "others took",
                   "source", "by", "date"},
                  {},
                  ""};
  for (const auto& [name, profile, curve] : curves) {
    const auto best =
        std::max_element(curve->points.begin(), curve->points.end(),
                         [](const auto& a, const auto& b) { return a.median < b.median; });
    std::vector<std::string> row = {
        name,
        fmt::format("{:.4g}", best->median),
        curve->unit,
        curve->at_unit == "B" ? format_bytes(int64_t(best->at))
                              : fmt::format("{:.6g} {}", best->at, curve->at_unit),
        best->median > 0
            ? fmt::format("{:.1f} %", 100 * std::abs(best->p90 - best->p10) / best->median)
            : "",
        fmt::format("{}", curve->threads),
        fmt::format("{:.1f} %", 100 * curve->provenance.foreign_share)};
    for (std::string& cell : cells_of(curve->provenance)) row.push_back(std::move(cell));
    table.rows.push_back(std::move(row));
  }
  return table;
}

// Flop for each byte of memory traffic at which the chart of limits begins and ends.
constexpr double kLeastIntensity = 0.0625, kLargestIntensity = 16384;

void add_roofline(std::span<const Profile> profiles, std::vector<Item>& items) {
  LineChart chart{
      "What a kernel can reach",
      {"flop for each byte of memory traffic", true, Ticks::kDoubling},
      {"TFLOP/s", true},
      {},
      "The smaller of two limits: the rate of products, and memory bandwidth times flop "
      "a byte. Left of the bend memory limits a kernel, right of it arithmetic does."};
  for (const Profile& profile : profiles) {
    const Quantity* memory =
        first_of(profile, {"memory.triad", "memory.copy", "device.peak_memory"});
    if (!memory || memory->value <= 0) continue;
    const std::string prefix = profiles.size() == 1 ? "" : profile.name + ", ";
    const auto add = [&](const char* type, std::initializer_list<const char*> keys) {
      const Quantity* products = first_of(profile, keys);
      if (!products || products->value <= 0) return;
      const double bend = products->value * 1e3 / memory->value;
      Line line{prefix + type, {}, false};
      for (const double x : {kLeastIntensity, bend, kLargestIntensity})
        line.points.emplace_back(x, std::min(products->value, x * memory->value * 1e-3));
      if (bend > kLeastIntensity && bend < kLargestIntensity)
        chart.lines.push_back(std::move(line));
    };
    add("bf16", {"compute.sustained_bf16", "compute.achievable_bf16", "device.peak_bf16"});
    add("fp32", {"compute.sustained_fp32", "compute.achievable_fp32", "device.peak_fp32"});
  }
  if (!chart.lines.empty()) items.emplace_back(std::move(chart));
}

// Bandwidth of collectives over ranks, as far as links and NICs allow.
void add_links(std::span<const Profile> profiles, std::vector<Item>& items) {
  constexpr int64_t kMostNodes = 128;
  LineChart chart{"What the links allow collectives",
                  {"ranks", true, Ticks::kDoubling},
                  {"busbw, GB/s", true},
                  {},
                  "Ceilings by the numbers of the profile; dotted: the share of them that "
                  "collectives usually reach."};
  for (const Profile& profile : profiles) {
    if (!profile.find("node.devices") || !profile.find("topology.link")) continue;
    const machine::Cluster cluster = profile.cluster();
    const auto curve_over = [&](machine::CollectiveOp op, int64_t ranks) {
      machine::CollectiveCurve curve;
      curve.op = op;
      curve.shape = "all";
      curve.ranks = ranks;
      return curve;
    };
    for (const auto op : {machine::CollectiveOp::kAllReduce, machine::CollectiveOp::kAllToAll}) {
      Line line{
          (profiles.size() == 1 ? "" : profile.name + ", ") + std::string(to_string(op)), {}, true};
      Line usable{"usual share", {}, false, {}, int(chart.lines.size())};
      for (int64_t ranks = 2; ranks <= kMostNodes * cluster.devices; ranks *= 2)
        if (const auto limit = link_limit(profile, curve_over(op, ranks))) {
          line.points.emplace_back(double(ranks), limit->gbps);
          usable.points.emplace_back(double(ranks), limit->gbps * limit->usable);
        }
      if (line.points.size() < 3) continue;
      chart.lines.push_back(std::move(line));
      chart.lines.push_back(std::move(usable));
    }
  }
  if (!chart.lines.empty()) items.emplace_back(std::move(chart));
}

}  // namespace

std::vector<std::string> cells_of(const machine::Provenance& p) {
  return {std::string(to_string(p.origin)), p.from, p.date};
}

PageSection limits_section(std::span<const Profile> profiles) {
  PageSection section{"Limits", "", {}};
  add_roofline(profiles, section.items);
  add_links(profiles, section.items);
  return section;
}

std::vector<PageSection> rate_sections(std::span<const Profile> profiles) {
  // By heading, then by the units of both axes; in the order in which they come.
  struct Group {
    std::string heading, at_unit, unit;
    std::vector<NamedRate> curves;
  };
  std::vector<Group> groups;
  for (const Profile& profile : profiles)
    for (const RateCurve& curve : profile.rates) {
      if (curve.points.empty()) continue;
      const std::string heading = heading_of(first_word(curve.subject));
      auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
        return g.heading == heading && g.at_unit == curve.at_unit && g.unit == curve.unit;
      });
      if (group == groups.end())
        group = groups.insert(groups.end(), {heading, curve.at_unit, curve.unit, {}});
      group->curves.push_back({"", &profile, &curve});
    }
  std::vector<PageSection> sections;
  for (Group& group : groups) {
    int64_t threads = group.curves[0].curve->threads;
    const bool same = std::all_of(group.curves.begin(), group.curves.end(),
                                  [&](const NamedRate& r) { return r.curve->threads == threads; });
    for (NamedRate& rate : group.curves) {
      rate.name = (profiles.size() == 1 ? "" : rate.profile->name + ", ") + rate.curve->subject;
      if (!same)
        rate.name +=
            fmt::format(", {} thread{}", rate.curve->threads, rate.curve->threads == 1 ? "" : "s");
    }
    auto section = std::find_if(sections.begin(), sections.end(),
                                [&](const PageSection& s) { return s.heading == group.heading; });
    if (section == sections.end())
      section = sections.insert(sections.end(), {group.heading, "", {}});
    const std::string title =
        fmt::format("{} over {}", group.unit, group.at_unit == "B" ? "sizes" : group.at_unit);
    section->items.emplace_back(rate_chart(title, group.curves));
    section->items.emplace_back(rate_sources(group.curves));
  }
  return sections;
}

PageSection storage_section(std::span<const Profile> profiles) {
  PageSection section{"Storage", "", {}};
  PageTable table{
      "",
      {"mount", "file system", "number", "value", "unit", "spread", "source", "by", "date"},
      {},
      ""};
  BarChart rates{"Sequential reads and writes", "mount", "GB/s", {}, {{"rate", {}}}, ""};
  rates.note = "Reads bypass caches; writes end with fsync.";
  for (const Profile& profile : profiles)
    for (const machine::Mount& mount : profile.mounts) {
      const std::string name = (profiles.size() == 1 ? "" : profile.name + ": ") + mount.path;
      for (const auto& [key, q] : mount.quantities) {
        const std::string number = key.substr(key.find('.') + 1);
        table.rows.push_back({name, mount.filesystem, number, fmt::format("{:.6g}", q.value),
                              q.unit, q.spread > 0 ? fmt::format("{:.1f} %", 100 * q.spread) : "",
                              std::string(to_string(q.origin)), q.from, q.date});
        if (q.unit != rates.unit) continue;
        rates.categories.push_back(fmt::format("{}, {}", name, number));
        rates.series[0].second.push_back(q.value);
      }
    }
  if (!rates.categories.empty()) section.items.emplace_back(std::move(rates));
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

}  // namespace ashlar::report
