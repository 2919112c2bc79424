// The roofline of a machine, with the kernels of the table beside its profile; and that table.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Profile;
using machine::Quantity;
using machine::TimedKernel;

const Quantity* first_of(const Profile& profile, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const Quantity* quantity = profile.find(key)) return quantity;
  return nullptr;
}

// Flop for each byte of memory traffic at which the chart of limits begins and ends.
constexpr double kLeastIntensity = 0.0625, kLargestIntensity = 16384;

LineChart roofs_of(std::span<const Profile> profiles) {
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
    const std::string prefix = prefix_of(profiles, profile);
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
  return chart;
}

// A mark for every kernel of the table that computes.
void add_kernels(const std::string& prefix, const std::vector<TimedKernel>& calls,
                 LineChart& chart) {
  std::map<std::string, Line> by_type;
  for (const TimedKernel& call : calls) {
    if (call.flop <= 0 || call.bytes <= 0 || call.median_us <= 0) continue;
    const double intensity = double(call.flop) / double(call.bytes);
    if (intensity < kLeastIntensity) continue;
    by_type[call.dtype].points.emplace_back(intensity, double(call.flop) / call.median_us * 1e-6);
  }
  if (!by_type.empty())
    chart.note +=
        " Marks: kernels of a step by the table below; those above the limit find their operands "
        "in caches.";
  for (auto& [type, line] : by_type) {
    line.name = fmt::format("{}kernels in {}", prefix, type);
    line.scattered = true;
    chart.lines.push_back(std::move(line));
  }
}

double time_of_calls(const TimedKernel& call) {
  return double(call.calls) * call.median_us;
}

double time_of_all(const std::vector<TimedKernel>& calls) {
  double all = 0;
  for (const TimedKernel& call : calls) all += time_of_calls(call);
  return all;
}

BarChart time_by_op(const std::string& title, const std::vector<TimedKernel>& calls) {
  constexpr size_t kMost = 16;
  std::map<std::string, double> shares;
  const double all = time_of_all(calls);
  for (const TimedKernel& call : calls)
    shares[call.op] += all > 0 ? 100 * time_of_calls(call) / all : 0;
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [op, share] : shares) sorted.emplace_back(share, op);
  std::sort(sorted.rbegin(), sorted.rend());
  BarChart chart{title, "kernel", "% of the time of all calls", {}, {{"share", {}}}, ""};
  double other = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i >= kMost) {
      other += sorted[i].first;
      continue;
    }
    chart.categories.push_back(sorted[i].second);
    chart.series[0].second.push_back(sorted[i].first);
  }
  if (sorted.size() > kMost) {
    chart.categories.push_back(fmt::format("{} others", sorted.size() - kMost));
    chart.series[0].second.push_back(other);
  }
  return chart;
}

PageTable calls_table(std::vector<TimedKernel> calls) {
  constexpr size_t kMost = 100;
  const double all = time_of_all(calls);
  std::stable_sort(calls.begin(), calls.end(), [](const TimedKernel& a, const TimedKernel& b) {
    return time_of_calls(a) > time_of_calls(b);
  });
  PageTable table{"Calls that take most of the time",
                  {"kernel", "type", "groups", "rows", "cols", "depth", "calls", "median, us",
                   "p10", "p90", "GFLOP/s", "GB/s", "share"},
                  {},
                  ""};
  if (calls.size() > kMost)
    table.note = fmt::format("The first {} of {} distinct calls.", kMost, calls.size());
  for (size_t i = 0; i < std::min(calls.size(), kMost); ++i) {
    const TimedKernel& call = calls[i];
    const auto rate = [&](int64_t work) {
      return call.median_us > 0 && work > 0
                 ? fmt::format("{:.4g}", double(work) / call.median_us * 1e-3)
                 : std::string();
    };
    const auto extent = [](int64_t n) { return n > 0 ? format_thousands(n) : std::string(); };
    table.rows.push_back({call.op, call.dtype, extent(call.groups), extent(call.rows),
                          extent(call.cols), extent(call.depth), format_thousands(call.calls),
                          fmt::format("{:.2f}", call.median_us), fmt::format("{:.2f}", call.p10_us),
                          fmt::format("{:.2f}", call.p90_us), rate(call.flop), rate(call.bytes),
                          fmt::format("{:.1f} %", all > 0 ? 100 * time_of_calls(call) / all : 0)});
  }
  return table;
}

}  // namespace

PageSection roofline_section(std::span<const Profile> profiles, const ProfileSides& sides) {
  PageSection section{"Roofline", "", {}};
  LineChart chart = roofs_of(profiles);
  if (chart.lines.empty()) return section;
  for (size_t i = 0; i < sides.kernels.size(); ++i)
    add_kernels(prefix_of(profiles, profiles[i]), sides.kernels[i].calls, chart);
  section.items.emplace_back(std::move(chart));
  return section;
}

PageSection kernels_section(std::span<const Profile> profiles, const ProfileSides& sides) {
  PageSection section{"Kernels", "", {}};
  for (size_t i = 0; i < sides.kernels.size(); ++i) {
    const KernelTimes& times = sides.kernels[i];
    const std::string prefix = prefix_of(profiles, profiles[i]);
    if (!times.problem.empty()) {
      section.text += fmt::format("{}Not shown: {}. ", prefix, times.problem);
    } else if (!times.calls.empty()) {
      section.text += fmt::format(
          "{}{} distinct calls of a step, timed while {} rank{} computed at once ({}). ", prefix,
          times.calls.size(), times.calls[0].ranks, times.calls[0].ranks == 1 ? "" : "s",
          profiles[i].kernels->file);
      section.items.emplace_back(time_by_op(prefix + "Time by kernel", times.calls));
      section.items.emplace_back(calls_table(times.calls));
    }
  }
  return section;
}

}  // namespace ashlar::report
