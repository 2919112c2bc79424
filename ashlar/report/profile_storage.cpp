// File systems: rates, and the reads that training asks of them (machine/laws.h, Reading).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ashlar/core/text.h"
#include "ashlar/report/profile_curves.h"

namespace ashlar::report {
namespace {

using machine::Mount;
using machine::Profile;
using machine::Quantity;

// The global batch of the example in the paper that the law comes from.
constexpr machine::Reading kExample{.sequences = 4096, .tokens = 4096, .bytes = 4};
constexpr double kShortestStep = 0.01, kLongestStep = 100;  // seconds

// Reads a second over the time of a step, and the step below which reads wait.
LineChart reads_of(const std::string& name, const Mount& mount, double iops) {
  LineChart chart{fmt::format("Reads that training needs from {}", name),
                  {"seconds of a step", true},
                  {"reads a second", true},
                  {},
                  ""};
  std::vector<double> scatters = {1, 2, 8};
  if (const auto found = mount.quantities.find("storage.scatter"); found != mount.quantities.end())
    scatters = {1, found->second.value, 8};
  for (const double scatter : scatters) {
    machine::Reading reading = kExample;
    reading.sigma = scatter;
    Line line{fmt::format("scatter {:.3g}", scatter), {}, false};
    for (const double step : {kShortestStep, kLongestStep})
      line.points.emplace_back(step, reading.required_iops(step));
    const double shortest = reading.shortest_step_s(iops);
    if (shortest > kShortestStep && shortest < kLongestStep)
      line.spots.push_back({"shortest step that never waits", shortest, iops});
    chart.lines.push_back(std::move(line));
  }
  chart.lines.push_back({"this file system", {{kShortestStep, iops}, {kLongestStep, iops}}, false});
  chart.note = fmt::format(
      "A global batch of {:.0f} x {:.0f} tokens of {:.0f} bytes, in pages of {:.0f} bytes. "
      "Scatter: "
      "reads over contiguous reads. A step shorter than where its line meets the file system's "
      "waits "
      "for data.",
      kExample.sequences, kExample.tokens, kExample.bytes, kExample.page);
  return chart;
}

}  // namespace

PageSection storage_section(std::span<const Profile> profiles) {
  PageSection section{"Storage", "", {}};
  PageTable table{
      "",
      {"mount", "file system", "number", "value", "unit", "spread", "source", "by", "date"},
      {},
      ""};
  BarChart rates{"Sequential reads and writes", "mount", "GB/s", {}, {{"rate", {}}}, ""};
  rates.note = "Reads bypass caches; writes end with fsync.";
  std::vector<LineChart> reads;
  for (const Profile& profile : profiles)
    for (const Mount& mount : profile.mounts) {
      const std::string name = (profiles.size() == 1 ? "" : profile.name + ": ") + mount.path;
      for (const auto& [key, q] : mount.quantities) {
        const std::string number = key.substr(key.find('.') + 1);
        table.rows.push_back({name, mount.filesystem, number, fmt::format("{:.6g}", q.value),
                              q.unit, q.spread > 0 ? fmt::format("{:.1f} %", 100 * q.spread) : "",
                              std::string(to_string(q.origin)), q.from, q.date});
        if (number == "iops" && q.value > 0) reads.push_back(reads_of(name, mount, q.value));
        if (q.unit != rates.unit) continue;
        rates.categories.push_back(fmt::format("{}, {}", number, name));
        rates.series[0].second.push_back(q.value);
      }
    }
  if (!rates.categories.empty()) section.items.emplace_back(std::move(rates));
  for (LineChart& chart : reads) section.items.emplace_back(std::move(chart));
  tidy({"mount", "file system", "source", "by", "date"}, table);
  if (!table.rows.empty()) section.items.emplace_back(std::move(table));
  return section;
}

}  // namespace ashlar::report
