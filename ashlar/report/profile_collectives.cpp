// How it works.  Curves of one operation share a pair of charts: bandwidth and time over sizes.
// Where there are too many to tell apart, they are split by type, engine, shape of groups, machine.
// The parts of their names that all curves of a chart share stand in its title.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::CollectiveCurve;
using machine::CollectiveOp;
using machine::Profile;

constexpr size_t kMostLines = 8;
constexpr int kLawPoints = 60;
constexpr size_t kLeastPoints = 4;  // of a curve that shows where it is saturated

// Parts of a curve's name, in the order in which they are said.
constexpr size_t kNumParts = 6;
struct OpCurve {
  const Profile* profile;
  const CollectiveCurve* curve;
  std::array<std::string, kNumParts> parts;  // machine, ranks, groups, shape, type, engine
};
constexpr std::array<size_t, 5> kSplitBy = {4, 5, 3, 0, 2};

// A group of all ranks, alone, needs no words.
OpCurve op_curve(const Profile& profile, const CollectiveCurve& curve) {
  return {&profile,
          &curve,
          {profile.name, fmt::format("{} ranks", curve.ranks),
           curve.groups == 1 ? "" : fmt::format("{} groups at once", curve.groups),
           curve.shape == "all" ? "" : curve.shape, curve.dtype, curve.engine}};
}

double busbw(const CollectiveCurve& curve, double size, double time_us) {
  return curve.factor() * size / time_us * 1e-3;
}

// Published curves of one size are points of the chart over ranks alone.
bool has_sizes(const CollectiveCurve& curve) {
  return std::count_if(curve.points.begin(), curve.points.end(),
                       [](const machine::CurvePoint& p) { return p.size > 0; }) > 1;
}

std::vector<machine::CurvePoint> in_order(const CollectiveCurve& curve) {
  std::vector<machine::CurvePoint> points = curve.points;
  std::erase_if(points, [](const auto& p) { return !(p.size > 0) || !(p.median_us > 0); });
  std::sort(points.begin(), points.end(),
            [](const auto& a, const auto& b) { return a.size < b.size; });
  return points;
}

// Sizes from the least to the largest of a curve, evenly spaced in the logarithm.
template <typename Value>
std::vector<std::pair<double, double>> sampled(double from, double to, Value value) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i <= kLawPoints; ++i) {
    const double size = from * std::pow(to / from, double(i) / kLawPoints);
    points.emplace_back(size, value(size));
  }
  return points;
}

// The names of curves without what all of them share, which `shared` takes.
std::vector<std::string> short_names(const std::vector<OpCurve>& curves, std::string& shared) {
  std::vector<std::string> names(curves.size());
  for (size_t part = 0; part < kNumParts; ++part) {
    const auto add = [&](const std::string& text, std::string& name) {
      if (!text.empty()) name += (name.empty() ? "" : ", ") + text;
    };
    const std::string& first = curves[0].parts[part];
    if (std::all_of(curves.begin(), curves.end(),
                    [&](const OpCurve& c) { return c.parts[part] == first; })) {
      if (part != 0) add(first, shared);
    } else {
      for (size_t i = 0; i < curves.size(); ++i) add(curves[i].parts[part], names[i]);
    }
  }
  for (std::string& name : names)
    if (name.empty()) name = shared;
  return names;
}

struct Pair {
  LineChart bandwidth, time;
};

// The sizes from which on the bandwidth stays above 90 and 95 % of its largest.
std::vector<Spot> saturations(const CollectiveCurve& curve,
                              const std::vector<machine::CurvePoint>& points) {
  std::vector<Spot> spots;
  if (points.size() < kLeastPoints) return spots;
  for (const int percent : {90, 95}) {
    const auto size = machine::saturating_size(points, percent / 100.0);
    for (const machine::CurvePoint& p : points)
      if (size && p.size == *size)
        spots.push_back(
            {fmt::format("saturated to {} %", percent), p.size, busbw(curve, p.size, p.median_us)});
  }
  return spots;
}

void add_guides(const OpCurve& c, const std::vector<machine::CurvePoint>& points, int line,
                Pair& charts) {
  const CollectiveCurve& curve = *c.curve;
  const double from = points.front().size, to = points.back().size;
  if (from == to) return;
  if (const auto law = machine::fit(points, curve.factor())) {
    const auto time = [&](double size) { return law->time_us(size, curve.factor()); };
    charts.time.lines.push_back({"law", sampled(from, to, time), false, {}, line});
    charts.bandwidth.lines.push_back(
        {"law",
         sampled(from, to, [&](double size) { return busbw(curve, size, time(size)); }),
         false,
         {},
         line});
  }
  if (const auto floor = machine::latency_floor_us(points))
    charts.time.lines.push_back({"latency floor", {{from, *floor}, {to, *floor}}, false, {}, line});
  if (const auto limit = link_limit(*c.profile, curve))
    charts.bandwidth.lines.push_back({fmt::format("links: {}", limit->formula),
                                      {{from, limit->gbps}, {to, limit->gbps}},
                                      false,
                                      {},
                                      line});
}

void add_charts(CollectiveOp op, const std::vector<OpCurve>& curves, PageSection& section) {
  std::string shared;
  const std::vector<std::string> names = short_names(curves, shared);
  const std::string what = fmt::format("{}{}{}", to_string(op), shared.empty() ? "" : ", ", shared);
  const PageAxis bytes = {"bytes of the whole array", true, Ticks::kBytes};
  Pair charts = {{what + ": bandwidth (busbw)", bytes, {"GB/s", true}, {}, ""},
                 {what + ": time", bytes, {"us", true}, {}, ""}};
  for (size_t i = 0; i < curves.size(); ++i) {
    const CollectiveCurve& curve = *curves[i].curve;
    Line bandwidth{names[i], {}, true}, time{names[i], {}, true};
    for (const machine::CurvePoint& p : in_order(curve)) {
      bandwidth.points.emplace_back(p.size, busbw(curve, p.size, p.median_us));
      bandwidth.range.emplace_back(busbw(curve, p.size, p.p90_us), busbw(curve, p.size, p.p10_us));
      time.points.emplace_back(p.size, p.median_us);
      time.range.emplace_back(p.p10_us, p.p90_us);
    }
    bandwidth.spots = saturations(curve, in_order(curve));
    charts.bandwidth.lines.push_back(std::move(bandwidth));
    charts.time.lines.push_back(std::move(time));
  }
  for (size_t i = 0; i < curves.size(); ++i)
    add_guides(curves[i], in_order(*curves[i].curve), int(i), charts);
  section.items.emplace_back(std::move(charts.bandwidth));
  section.items.emplace_back(std::move(charts.time));
}

// Charts of at most kMostLines lines, if the curves differ in anything.
void split_into_charts(CollectiveOp op, const std::vector<OpCurve>& curves, PageSection& section) {
  if (curves.empty()) return;
  if (curves.size() > kMostLines)
    for (const size_t part : kSplitBy) {
      std::vector<std::string> values;
      for (const OpCurve& c : curves)
        if (std::find(values.begin(), values.end(), c.parts[part]) == values.end())
          values.push_back(c.parts[part]);
      if (values.size() == 1) continue;
      for (const std::string& value : values) {
        std::vector<OpCurve> some;
        std::copy_if(curves.begin(), curves.end(), std::back_inserter(some),
                     [&](const OpCurve& c) { return c.parts[part] == value; });
        split_into_charts(op, some, section);
      }
      return;
    }
  add_charts(op, curves, section);
}

std::vector<std::string> law_row(const OpCurve& c, bool with_machine) {
  const CollectiveCurve& curve = *c.curve;
  std::vector<std::string> row;
  if (with_machine) row.push_back(c.profile->name);
  row.insert(row.end(), {std::string(to_string(curve.op)), curve.dtype, curve.engine,
                         fmt::format("{}", curve.ranks), fmt::format("{}", curve.groups),
                         curve.shape, curve.algorithm});
  const auto floor = machine::latency_floor_us(curve.points);
  row.push_back(floor ? fmt::format("{:.4g}", *floor) : "");
  const auto law = machine::fit(curve.points, curve.factor());
  row.push_back(law ? fmt::format("{:.4g}", law->alpha_us()) : "");
  row.push_back(law && law->gbps() > 0 ? fmt::format("{:.4g}", law->gbps()) : "");
  row.push_back(law ? fmt::format("{:.0f} %", 100 * law->largest_error) : "");
  for (const double share : {0.90, 0.95}) {
    const auto size = machine::saturating_size(in_order(curve), share);
    row.push_back(size ? size_text(*size) : "");
  }
  const auto limit = link_limit(*c.profile, curve);
  row.push_back(limit ? fmt::format("{:.4g} GB/s, {}", limit->gbps, limit->formula) : "");
  row.push_back(fmt::format("{:.1f} %", 100 * curve.provenance.foreign_share));
  for (std::string& cell : cells_of(curve.provenance)) row.push_back(std::move(cell));
  return row;
}

PageTable laws_table(const std::vector<OpCurve>& curves, bool with_machine) {
  PageTable table{"Laws and sources of the curves", {}, {}, ""};
  if (with_machine) table.columns.push_back("machine");
  table.columns.insert(table.columns.end(),
                       {"operation", "type", "engine", "ranks", "groups", "shape", "algorithm",
                        "floor, us", "alpha, us", "B, GB/s", "largest error", "90 % from",
                        "95 % from", "links allow", "others took", "source", "by", "date"});
  for (const OpCurve& c : curves) table.rows.push_back(law_row(c, with_machine));
  table.note =
      "floor: the median time of sizes up to 1 KiB. Law: T(S) = alpha + k S / B, fitted without "
      "outliers, alpha of the smallest and B of the largest sizes. 90 % from: the size from which "
      "on the bandwidth stays above 90 % of its largest. others took: processor time of other "
      "programs meanwhile, per core and second.";
  tidy({"type", "engine", "ranks", "groups", "shape", "algorithm", "others took", "source", "by",
        "date"},
       table);
  return table;
}

}  // namespace

std::string name_of(const CollectiveCurve& curve) {
  return fmt::format("{} of {} over {} ranks ({}{}{})", to_string(curve.op), curve.dtype,
                     curve.ranks, curve.engine, curve.shape == "all" ? "" : ", " + curve.shape,
                     curve.groups == 1 ? "" : fmt::format(", {} groups at once", curve.groups));
}

std::optional<LinkLimit> link_limit(const Profile& profile, const CollectiveCurve& curve) {
  if (!profile.find("node.devices") || !profile.find("topology.link") || curve.groups != 1 ||
      (curve.shape != "all" && curve.shape != "node") || curve.ranks < 2)
    return std::nullopt;
  const machine::Cluster cluster = profile.cluster();
  const auto share = [&](const char* key) {
    const machine::Quantity* quantity = profile.find(key);
    return quantity ? quantity->value : 1.0;
  };
  if (curve.ranks <= cluster.devices) {
    const double gbps = machine::node_ceiling(cluster, curve.ranks);
    return LinkLimit{gbps, share("topology.link_usable"),
                     cluster.links == machine::NodeLinks::kMesh
                         ? fmt::format("{} x {:.4g} GB/s", curve.ranks - 1, cluster.link_gbps)
                         : fmt::format("{:.4g} GB/s behind a switch", cluster.link_gbps)};
  }
  if (curve.ranks % cluster.devices != 0 || cluster.nic_gbps <= 0) return std::nullopt;
  const int64_t nodes = curve.ranks / cluster.devices;
  return LinkLimit{
      machine::cluster_ceiling(cluster, curve.op, nodes), share("topology.nic_usable"),
      fmt::format("{} nodes of {} NICs of {:.4g} GB/s", nodes, cluster.devices, cluster.nic_gbps)};
}

PageSection collectives_section(std::span<const Profile> profiles) {
  PageSection section{"Collectives", "", {}};
  std::vector<CollectiveOp> ops;
  std::vector<OpCurve> all;
  for (const Profile& profile : profiles)
    for (const CollectiveCurve& curve : profile.collectives) {
      if (curve.points.empty()) continue;
      if (std::find(ops.begin(), ops.end(), curve.op) == ops.end()) ops.push_back(curve.op);
      all.push_back(op_curve(profile, curve));
    }
  if (all.empty()) {
    add_links(profiles, section.items);
    if (!section.items.empty())
      section.text =
          "Never measured; what the links allow follows from the numbers of the profile.";
    return section;
  }
  section.text =
      "Sizes and bandwidths follow nccl-tests: bytes of the whole array, and busbw, which compares "
      "with the rate of a link whatever the number of ranks. Points are medians, bands reach from "
      "the 10th to the 90th percentile. Dotted lines: the fitted law, the floor of latency, and "
      "what the links allow, where the profile describes them. Saturated: from this size on the "
      "bandwidth stays above that share of its largest.";
  for (const CollectiveOp op : ops) {
    std::vector<OpCurve> curves;
    std::copy_if(all.begin(), all.end(), std::back_inserter(curves),
                 [&](const OpCurve& c) { return c.curve->op == op && has_sizes(*c.curve); });
    split_into_charts(op, curves, section);
  }
  add_links(profiles, section.items);
  section.items.emplace_back(laws_table(all, profiles.size() > 1));
  return section;
}

}  // namespace ashlar::report
