// Points of charts of rates that stand out: the work from which products reach 90 % of their
// largest rate, the sizes at which arrays fill the caches, the length from which compute limits
// attention; and maps of products over their rows and columns.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::Quantity;
using machine::RateCurve;

// The least work with 90 % of the largest rate of the line.
void mark_saturation(Line& line) {
  double largest = 0;
  for (const auto& [at, rate] : line.points) largest = std::max(largest, rate);
  for (const auto& [at, rate] : line.points)
    if (rate >= 0.9 * largest && line.points.size() > 1) {
      line.spots.push_back({"90 % of its largest rate", at, rate});
      return;
    }
}

// The length from which time grows at least like length^1.5: compute limits, no longer memory.  The
// work of causal attention grows like n (n + 1).
void mark_crossover(Line& line) {
  constexpr double kExponent = 1.5;
  const auto log_time = [](const std::pair<double, double>& p) {
    return std::log(p.first * (p.first + 1) / p.second);
  };
  for (size_t i = 1; i < line.points.size(); ++i) {
    const auto &before = line.points[i - 1], &here = line.points[i];
    if (!(before.second > 0) || !(here.second > 0)) continue;
    const double exponent =
        (log_time(here) - log_time(before)) / std::log(here.first / before.first);
    if (exponent < kExponent) continue;
    line.spots.push_back({"limited by compute from here", here.first, here.second});
    return;
  }
}

// Arrays of a loop with three of them, of every rank, that fill a cache.
void mark_caches(std::span<const Profile> profiles, LineChart& chart) {
  if (profiles.size() != 1) return;
  const auto value = [&](const char* key) {
    const Quantity* quantity = profiles[0].find(key);
    return quantity ? quantity->value : 0.0;
  };
  const double l2 = value("node.l2"), l3 = value("node.l3"),
               ranks = std::max(1.0, value("node.devices"));
  if (l2 > 0) {
    chart.marks.push_back({l2 / 3, "L2 full"});
    chart.note += fmt::format(" L2 full: three such arrays fill the {} of a core.", size_text(l2));
  }
  if (l3 > 0) {
    chart.marks.push_back({l3 / 3 / ranks, "L3 full"});
    chart.note +=
        fmt::format(" L3 full: those of all ranks fill the {} of the node.", size_text(l3));
  }
}

// The number after " K ", and the subject without both.
std::optional<int64_t> take_number(const char* letter, std::string& subject) {
  const size_t at = subject.find(fmt::format(" {} ", letter));
  if (at == std::string::npos) return std::nullopt;
  char* end = nullptr;
  const char* begin = subject.c_str() + at + 3;
  const long number = std::strtol(begin, &end, 10);
  if (end == begin) return std::nullopt;
  subject.erase(at, size_t(end - subject.c_str()) - at);
  return number;
}

// Rates of products of one type and depth: by columns, then by rows.
using ProductMap = std::map<int64_t, std::map<int64_t, double>>;

HeatMap heat_map_of(std::string title, const ProductMap& by_columns) {
  HeatMap map{std::move(title), "columns N", "rows M", "TFLOP/s", {}, {}, {}, ""};
  std::set<int64_t> all_rows;
  for (const auto& [columns, by_rows] : by_columns) {
    map.columns.push_back(format_thousands(columns));
    for (const auto& [rows, rate] : by_rows) all_rows.insert(rows);
  }
  for (const int64_t rows : all_rows) {
    map.rows.push_back(format_thousands(rows));
    for (const auto& [columns, by_rows] : by_columns) {
      const auto found = by_rows.find(rows);
      map.values.push_back(found == by_rows.end() ? std::nan("") : found->second);
    }
  }
  return map;
}

}  // namespace

void point_out(std::span<const Profile> profiles, std::span<const RateCurve* const> curves,
               LineChart& chart) {
  bool stream = false;
  for (size_t i = 0; i < curves.size(); ++i) {
    const RateCurve& curve = *curves[i];
    if (curve.subject.starts_with("product") && curve.at_unit == "GFLOP")
      mark_saturation(chart.lines[i]);
    if (curve.subject.starts_with("attention") && curve.at_unit == "tokens")
      mark_crossover(chart.lines[i]);
    stream |= curve.subject.starts_with("stream") && curve.at_unit == "B";
  }
  if (stream) mark_caches(profiles, chart);
}

bool is_of_map(const RateCurve& curve) {
  std::string subject = curve.subject;
  return subject.starts_with("product") && curve.unit == "TFLOP/s" &&
         (curve.at_unit == "rows" || curve.at_unit == "M") && take_number("K", subject) &&
         take_number("N", subject);
}

void add_product_maps(std::span<const Profile> profiles, std::vector<Item>& items) {
  for (const Profile& profile : profiles) {
    std::map<std::pair<std::string, int64_t>, ProductMap> maps;
    for (const RateCurve& curve : profile.rates) {
      if (!is_of_map(curve)) continue;
      std::string subject = curve.subject;
      const int64_t K = *take_number("K", subject), N = *take_number("N", subject);
      for (const machine::RatePoint& p : curve.points)
        maps[{subject, K}][N][int64_t(p.at)] = p.median;
    }
    for (const auto& [key, map] : maps)
      items.emplace_back(heat_map_of(fmt::format("{}{}, depth K = {}", prefix_of(profiles, profile),
                                                 key.first, format_thousands(key.second)),
                                     map));
  }
}

}  // namespace ashlar::report
