// Rates over sizes, by the first word of their subjects.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::RateCurve;

std::string first_word(const std::string& subject) {
  return subject.substr(0, subject.find(' '));
}

std::string heading_of(const std::string& word) {
  if (word.starts_with("linear_") || word.starts_with("grouped_linear_"))
    return "Products of recipes";
  const std::pair<const char*, const char*> known[] = {{"stream", "Memory bandwidth"},
                                                       {"memory", "Memory bandwidth"},
                                                       {"product", "Products"},
                                                       {"products", "Products"},
                                                       {"grouped", "Products"},
                                                       {"dense", "Products"},
                                                       {"launch", "Launches"},
                                                       {"wake", "Launches"},
                                                       {"norm", "Norms"},
                                                       {"add", "Norms"},
                                                       {"adamw", "Optimizer"},
                                                       {"muon", "Optimizer"},
                                                       {"Newton-Schulz", "Optimizer"},
                                                       {"disk", "Storage"},
                                                       {"recurrence", "Recurrences"}};
  for (const auto& [name, heading] : known)
    if (word == name) return heading;
  std::string heading = word;
  if (!heading.empty()) heading[0] = char(std::toupper(static_cast<unsigned char>(heading[0])));
  return heading;
}

// "1,048,576 elements", "4 MiB".
std::string at_text(const RateCurve& curve, double at) {
  if (curve.at_unit == "B") return size_text(at);
  return at == std::floor(at) ? fmt::format("{} {}", format_thousands(int64_t(at)), curve.at_unit)
                              : fmt::format("{:.4g} {}", at, curve.at_unit);
}

// The axis for these values of a profile's unit.
PageAxis axis_for(const std::string& unit, const std::vector<double>& values, double log_from) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const bool whole = std::all_of(values.begin(), values.end(),
                                 [](double value) { return value == std::floor(value); });
  const bool log = !values.empty() && *low > 0 && *high >= log_from * *low;
  return {unit == "B" ? "bytes" : unit, log,
          !log || !whole ? Ticks::kDecimal : (unit == "B" ? Ticks::kBytes : Ticks::kDoubling)};
}

constexpr size_t kMostBands = 3;  // as in charts.js

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
    chart.note = curves.size() > kMostBands
                     ? "Points are medians; the rows have the 10th and the 90th percentiles."
                     : "Points are medians, bands from the 10th to the 90th percentile.";
  else
    for (Line& line : chart.lines) line.range.clear();
  return chart;
}

// Curves of one size each.
BarChart single_rates(std::string title, const std::vector<NamedRate>& curves) {
  BarChart chart{std::move(title), "", curves[0].curve->unit, {}, {{"rate", {}}}, ""};
  const double at = curves[0].curve->points[0].at;
  const bool same = std::all_of(curves.begin(), curves.end(), [&](const NamedRate& rate) {
    return rate.curve->points[0].at == at;
  });
  if (same) chart.title += " at " + at_text(*curves[0].curve, at);
  for (const NamedRate& rate : curves) {
    chart.categories.push_back(
        same ? rate.name
             : fmt::format("{}, {}", rate.name, at_text(*rate.curve, rate.curve->points[0].at)));
    chart.series[0].second.push_back(rate.curve->points[0].median);
  }
  return chart;
}

void add_sources(const std::vector<NamedRate>& curves, PageTable& table) {
  for (const auto& [name, profile, curve] : curves) {
    const auto best =
        std::max_element(curve->points.begin(), curve->points.end(),
                         [](const auto& a, const auto& b) { return a.median < b.median; });
    std::vector<std::string> row = {
        name,
        fmt::format("{:.4g}", best->median),
        curve->unit,
        at_text(*curve, best->at),
        best->median > 0
            ? fmt::format("{:.1f} %", 100 * std::abs(best->p90 - best->p10) / best->median)
            : "",
        fmt::format("{}", curve->threads),
        fmt::format("{:.1f} %", 100 * curve->provenance.foreign_share)};
    for (std::string& cell : cells_of(curve->provenance)) row.push_back(std::move(cell));
    table.rows.push_back(std::move(row));
  }
}

// Curves that share a chart: one heading, and the units of both axes.
struct RateGroup {
  std::string heading, at_unit, unit;
  std::vector<NamedRate> curves;
};

// In the order in which they come.
std::vector<RateGroup> groups_of(std::span<const Profile> profiles) {
  std::vector<RateGroup> groups;
  for (const Profile& profile : profiles)
    for (const RateCurve& curve : profile.rates) {
      if (curve.points.empty() || is_of_map(curve)) continue;
      const std::string heading = heading_of(first_word(curve.subject));
      auto group = std::find_if(groups.begin(), groups.end(), [&](const RateGroup& g) {
        return g.heading == heading && g.at_unit == curve.at_unit && g.unit == curve.unit;
      });
      if (group == groups.end())
        group = groups.insert(groups.end(), {heading, curve.at_unit, curve.unit, {}});
      group->curves.push_back({"", &profile, &curve});
    }
  return groups;
}

void name_curves(std::span<const Profile> profiles, RateGroup& group) {
  const int64_t threads = group.curves[0].curve->threads;
  const bool same = std::all_of(group.curves.begin(), group.curves.end(),
                                [&](const NamedRate& r) { return r.curve->threads == threads; });
  for (NamedRate& rate : group.curves) {
    rate.name = prefix_of(profiles, *rate.profile) + rate.curve->subject;
    if (same) continue;
    const int64_t n = rate.curve->threads;
    const char* what = group.heading == "Storage" ? "call" : "thread";
    rate.name += fmt::format(", {} {}{}", n, what, n == 1 ? "" : "s");
  }
}

// A chart of at most kMostLines lines for each part of the curves.
void add_rate_charts(std::span<const Profile> profiles, const RateGroup& group,
                     std::vector<Item>& items) {
  constexpr size_t kMostLines = 8, kMostCurves = 32;
  if (group.curves.size() > kMostCurves) return;  // the table has them
  const std::string unit = group.unit == "1" ? "ratio" : group.unit;
  std::string title =
      fmt::format("{} over {}", unit, group.at_unit == "B" ? "sizes" : group.at_unit);
  if (group.curves.size() == 1) title = fmt::format("{}: {}", group.curves[0].name, title);
  const bool single = std::all_of(group.curves.begin(), group.curves.end(),
                                  [](const NamedRate& r) { return r.curve->points.size() == 1; });
  if (single) {
    items.emplace_back(single_rates(unit, group.curves));
    return;
  }
  const size_t num_parts = (group.curves.size() + kMostLines - 1) / kMostLines;
  for (size_t part = 0; part < num_parts; ++part) {
    const auto at = [&](size_t n) {
      return group.curves.begin() + long(n * group.curves.size() / num_parts);
    };
    const std::vector<NamedRate> curves(at(part), at(part + 1));
    LineChart chart = rate_chart(
        num_parts == 1 ? title : fmt::format("{} ({} of {})", title, part + 1, num_parts), curves);
    std::vector<const RateCurve*> drawn;
    for (const NamedRate& rate : curves) drawn.push_back(rate.curve);
    point_out(profiles, drawn, chart);
    items.emplace_back(std::move(chart));
  }
}

}  // namespace

std::vector<std::string> cells_of(const machine::Provenance& p) {
  return {std::string(to_string(p.origin)), p.from, p.date};
}

std::vector<PageSection> rate_sections(std::span<const Profile> profiles) {
  std::vector<PageSection> sections;
  std::vector<PageTable> sources;  // of each section
  for (RateGroup& group : groups_of(profiles)) {
    name_curves(profiles, group);
    auto section = std::find_if(sections.begin(), sections.end(),
                                [&](const PageSection& s) { return s.heading == group.heading; });
    if (section == sections.end()) {
      section = sections.insert(sections.end(), {group.heading, "", {}});
      sources.push_back({"Largest rates and sources of the curves",
                         {"curve", "largest", "unit", "at", "spread there", "threads",
                          "others took", "source", "by", "date"},
                         {},
                         ""});
    }
    add_rate_charts(profiles, group, section->items);
    add_sources(group.curves, sources[size_t(section - sections.begin())]);
  }
  for (size_t i = 0; i < sections.size(); ++i) {
    if (sections[i].heading == "Products") add_product_maps(profiles, sections[i].items);
    tidy({"unit", "threads", "others took", "source", "by", "date"}, sources[i]);
    sections[i].items.emplace_back(std::move(sources[i]));
  }
  return sections;
}

}  // namespace ashlar::report
