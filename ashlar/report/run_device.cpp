#include "ashlar/report/run_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "ashlar/core/error.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"
#include "ashlar/report/run_page.h"

namespace ashlar::report {
namespace {

using Function = DeviceTimes::Function;

// The first step in the name of a trace file of rank 0, "steps-2-4-rank-0.json".
std::optional<int64_t> first_step_of(const std::string& name) {
  constexpr std::string_view kBegin = "steps-", kEnd = "-rank-0.json";
  int64_t step = 0;
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  const char* digits = name.data() + kBegin.size();
  if (std::from_chars(digits, name.data() + name.size(), step).ptr == digits) return std::nullopt;
  return step;
}

// "": there is none.
std::string last_trace(FileSystem& files, const std::string& directory) {
  const auto info = files.stat(directory, LinkPolicy::kFollow);
  if (!info || info->type != FileInfo::Type::kDirectory) return "";
  std::string last;
  for (const std::string& name : files.list(directory))
    if (first_step_of(name) > (last.empty() ? std::nullopt : first_step_of(last))) last = name;
  return last.empty() ? "" : join(directory, last);
}

void add_call(const Json& event, DeviceTimes& times) {
  const Json& args = event.at("args");
  const auto name = event.at("name").get<std::string>();
  const auto phase = args.at("phase").get<std::string>();
  auto found = std::find_if(times.functions.begin(), times.functions.end(),
                            [&](const Function& f) { return f.name == name && f.phase == phase; });
  if (found == times.functions.end())
    found = times.functions.insert(found, {.name = name, .phase = phase});
  ++found->num_calls;
  found->num_launches += args.at("launches").get<int64_t>();
  found->seconds += event.at("dur").get<double>() * 1e-6;
  found->flop += args.at("flop").get<double>();
  found->bytes += args.at("bytes").get<double>();
}

DeviceTimes times_of(const Json& trace) {
  DeviceTimes times;
  const Json& about = trace.at("otherData");
  times.device = about.at("device").get<std::string>();
  times.first_step = about.at("first_step").get<int64_t>();
  for (const Json& event : trace.at("traceEvents")) {
    const auto category = event.value("cat", std::string());
    if (category == "device") add_call(event, times);
    if (category != "step") continue;
    ++times.num_steps;
    times.steps_s += event.at("dur").get<double>() * 1e-6;
  }
  return times.functions.empty() || times.steps_s <= 0 ? DeviceTimes() : times;
}

// A bar for each phase, made of its functions.
BarChart phases_chart(const DeviceTimes& times) {
  BarChart chart{"Time of the GPU by phase and function", "phase", "ms a step", {}, {}, ""};
  std::map<std::string, std::vector<double>> series;
  for (const Function& f : times.functions) {
    auto phase = std::find(chart.categories.begin(), chart.categories.end(), f.phase);
    if (phase == chart.categories.end()) phase = chart.categories.insert(phase, f.phase);
    std::vector<double>& values = series[f.name];
    const auto at = size_t(phase - chart.categories.begin());
    values.resize(std::max(values.size(), at + 1), 0);
    values[at] = 1e3 * f.seconds / double(times.num_steps);
  }
  for (auto& [name, values] : series) {
    values.resize(chart.categories.size(), 0);
    chart.series.emplace_back(name, std::move(values));
  }
  return chart;
}

// The functions of all phases, the longest first.
std::vector<Function> joined_phases(const DeviceTimes& times) {
  std::map<std::string, Function> by_name;
  for (const Function& f : times.functions) {
    Function& sum = by_name[f.name];
    sum.name = f.name;
    sum.num_calls += f.num_calls;
    sum.num_launches += f.num_launches;
    sum.seconds += f.seconds;
    sum.flop += f.flop;
    sum.bytes += f.bytes;
  }
  std::vector<Function> functions;
  for (auto& [name, f] : by_name) functions.push_back(std::move(f));
  std::stable_sort(functions.begin(), functions.end(),
                   [](const Function& a, const Function& b) { return a.seconds > b.seconds; });
  return functions;
}

PageTable functions_table(const DeviceTimes& times) {
  PageTable table{"Functions on the GPU",
                  {"function", "calls a step", "launches a step", "ms a step", "of the step",
                   "TFLOP/s", "GB/s"},
                  {},
                  ""};
  const double steps = double(times.num_steps);
  double busy_s = 0;
  for (const Function& f : joined_phases(times)) {
    busy_s += f.seconds;
    const auto rate = [&](double work) {
      return work > 0 && f.seconds > 0 ? fmt::format("{:.4g}", work / f.seconds) : std::string();
    };
    table.rows.push_back({f.name, fmt::format("{:.4g}", double(f.num_calls) / steps),
                          fmt::format("{:.4g}", double(f.num_launches) / steps),
                          fmt::format("{:.4g}", 1e3 * f.seconds / steps),
                          fmt::format("{:.1f} %", 100 * f.seconds / times.steps_s),
                          rate(f.flop * 1e-12), rate(f.bytes * 1e-9)});
  }
  table.note = fmt::format(
      "Means of {} step{} from step {} on, on {}. A step takes {:.4g} ms, of which the GPU is in "
      "these functions for {:.1f} %. Bytes and flop are counted by formulas.",
      times.num_steps, times.num_steps == 1 ? "" : "s", times.first_step, times.device,
      1e3 * times.steps_s / steps, 100 * busy_s / times.steps_s);
  return table;
}

}  // namespace

DeviceTimes read_device_times(FileSystem& files, const std::string& run_directory) {
  const std::string path = last_trace(files, join(run_directory, "trace"));
  if (path.empty()) return {};
  const auto mapping = files.map(path);
  const auto bytes = mapping->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // The first line is about the file, and traces of CPUs are not read.
  if (text.substr(0, text.find('\n')).find("\"device\":") == text.npos) return {};
  DeviceTimes damaged;
  try {
    return times_of(parse_json(text, printable(path), ErrorKind::kData));
  } catch (const Json::exception& e) {
    damaged.problem = fmt::format("{}: not a trace: {}", printable(path), e.what());
  } catch (const Error& e) {
    damaged.problem = e.what();
  }
  return damaged;
}

PageSection device_section(std::span<const RecordedRun> runs) {
  PageSection section{"GPU", "", {}};
  for (const RecordedRun& run : runs) {
    if (!run.device.problem.empty())
      section.items.emplace_back(PageTable{"", {"trace"}, {{run.device.problem}}, ""});
    if (run.device.functions.empty()) continue;
    BarChart phases = phases_chart(run.device);
    PageTable functions = functions_table(run.device);
    if (runs.size() > 1) {
      phases.title += " of " + run.name;
      functions.title += " of " + run.name;
    }
    section.items.emplace_back(std::move(phases));
    section.items.emplace_back(std::move(functions));
  }
  return section;
}

}  // namespace ashlar::report
