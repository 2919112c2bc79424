// Bandwidth of collectives over ranks beside what links allow (within a node equation 1 of arXiv
// 2511.17127), and messages between every two ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::CollectiveCurve;
using machine::CollectiveOp;
using machine::PairOfTimes;
using machine::PairTimes;
using machine::Profile;

// The largest busbw of a curve over its sizes.
double largest_busbw(const CollectiveCurve& curve) {
  double largest = 0;
  for (const machine::CurvePoint& p : curve.points)
    if (p.size > 0 && p.median_us > 0)
      largest = std::max(largest, curve.factor() * p.size / p.median_us * 1e-3);
  return largest;
}

// Operation, type, engine: what the points of a line share.
std::map<std::string, std::map<int64_t, double>> bandwidths_by_ranks(const Profile& profile,
                                                                     int64_t most_ranks) {
  std::map<std::string, std::map<int64_t, double>> lines;
  for (const CollectiveCurve& curve : profile.collectives) {
    const double gbps = largest_busbw(curve);
    if (gbps <= 0 || curve.groups != 1 || (curve.shape != "all" && curve.shape != "node") ||
        curve.op == CollectiveOp::kSendReceive || curve.ranks > most_ranks)
      continue;
    double& known = lines[fmt::format("{}, {}, {}", to_string(curve.op), curve.dtype, curve.engine)]
                         [curve.ranks];
    known = std::max(known, gbps);
  }
  std::erase_if(lines, [](const auto& line) { return line.second.size() < 2; });
  return lines;
}

// Measured bandwidths in groups of a node beside what its links allow by equation 1.
void add_node(std::span<const Profile> profiles, std::vector<Item>& items) {
  LineChart chart{
      "Largest bandwidth over ranks of a node", {"ranks", false}, {"busbw, GB/s", false}, {}, ""};
  for (const Profile& profile : profiles) {
    const machine::Quantity* devices = profile.find("node.devices");
    const bool has_links = devices && profile.find("topology.link");
    const auto measured =
        bandwidths_by_ranks(profile, devices ? int64_t(devices->value) : INT64_MAX);
    for (const auto& [name, points] : measured) {
      Line line{prefix_of(profiles, profile) + name, {}, true};
      for (const auto& [ranks, gbps] : points) line.points.emplace_back(double(ranks), gbps);
      chart.lines.push_back(std::move(line));
    }
    if (measured.empty() || !has_links || devices->value < 2) continue;
    const machine::Cluster cluster = profile.cluster();
    Line line{prefix_of(profiles, profile) + "what links allow", {}, false};
    for (int64_t ranks = 2; ranks <= cluster.devices; ++ranks)
      line.points.emplace_back(double(ranks), machine::node_ceiling(cluster, ranks));
    chart.lines.push_back(std::move(line));
    chart.note +=
        fmt::format("{}{}", chart.note.empty() ? "" : " ",
                    cluster.links == machine::NodeLinks::kMesh
                        ? fmt::format("Links of {} are a mesh: a group of n uses n - 1 of them, (n "
                                      "- 1) x {:.4g} GB/s (equation 1 of arXiv 2511.17127).",
                                      profile.name, cluster.link_gbps)
                        : fmt::format("{} has a switch: {:.4g} GB/s whatever the number of ranks.",
                                      profile.name, cluster.link_gbps));
  }
  if (!chart.lines.empty()) items.emplace_back(std::move(chart));
}

// Bandwidth of collectives over ranks, as far as links and NICs allow.
void add_cluster(std::span<const Profile> profiles, std::vector<Item>& items) {
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
      Line line{prefix_of(profiles, profile) + std::string(to_string(op)), {}, true};
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

HeatMap map_of(const PairTimes& times, std::string title, std::string unit,
               double PairOfTimes::*number) {
  HeatMap map{std::move(title), "rank", "", std::move(unit), {}, {}, {}, ""};
  const auto n = size_t(times.ranks);
  map.values.assign(n * n, std::nan(""));
  for (size_t rank = 0; rank < n; ++rank) {
    map.columns.push_back(std::to_string(rank));
    map.rows.push_back(fmt::format("rank {}", rank));
  }
  for (const PairOfTimes& pair : times.pairs)
    map.values[size_t(pair.first) * n + size_t(pair.second)] =
        map.values[size_t(pair.second) * n + size_t(pair.first)] = pair.*number;
  return map;
}

double median_bandwidth(const PairTimes& times) {
  std::vector<double> rates;
  for (const PairOfTimes& pair : times.pairs) rates.push_back(pair.gbps);
  if (rates.empty()) return 0;
  std::nth_element(rates.begin(), rates.begin() + long(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

// Pairs far below the median of all.
PageTable slow_pairs(const PairTimes& times) {
  constexpr double kSlow = 0.85;
  constexpr size_t kMost = 50;
  const double median = median_bandwidth(times);
  std::vector<PairOfTimes> slow;
  for (const PairOfTimes& pair : times.pairs)
    if (pair.gbps < kSlow * median) slow.push_back(pair);
  std::sort(slow.begin(), slow.end(), [](const auto& a, const auto& b) { return a.gbps < b.gbps; });
  PageTable table{
      fmt::format("Pairs below {:.0f} % of the median of {:.4g} GB/s", 100 * kSlow, median),
      {"ranks", "GB/s", "of the median", "us"},
      {},
      ""};
  if (slow.size() > kMost) table.note = fmt::format("The slowest {} of {}.", kMost, slow.size());
  for (size_t i = 0; i < std::min(slow.size(), kMost); ++i)
    table.rows.push_back({fmt::format("{} and {}", slow[i].first, slow[i].second),
                          fmt::format("{:.4g}", slow[i].gbps),
                          fmt::format("{:.0f} %", 100 * slow[i].gbps / median),
                          fmt::format("{:.4g}", slow[i].latency_us)});
  return table;
}

}  // namespace

void add_links(std::span<const Profile> profiles, std::vector<Item>& items) {
  add_node(profiles, items);
  add_cluster(profiles, items);
}

PageSection pairs_section(std::span<const Profile> profiles) {
  PageSection section{"Pairs of ranks", "", {}};
  std::vector<PageTable> slow;
  for (const Profile& profile : profiles)
    for (const PairTimes& times : profile.pairs) {
      if (times.pairs.empty()) continue;
      const std::string by =
          fmt::format("{}{} ranks, {}", prefix_of(profiles, profile), times.ranks, times.engine);
      section.items.emplace_back(map_of(
          times,
          fmt::format("Bandwidth of {} messages: {}", size_text(double(times.bandwidth_bytes)), by),
          "GB/s", &PairOfTimes::gbps));
      section.items.emplace_back(map_of(
          times, fmt::format("Time of {} messages: {}", size_text(double(times.latency_bytes)), by),
          "us", &PairOfTimes::latency_us));
      if (times.ranks > 2)
        if (PageTable table = slow_pairs(times); !table.rows.empty())
          slow.push_back(std::move(table));
    }
  for (PageTable& table : slow) section.items.emplace_back(std::move(table));
  if (!section.items.empty())
    section.text = "One way of a message between two ranks, half of a round trip; medians.";
  return section;
}

}  // namespace ashlar::report
