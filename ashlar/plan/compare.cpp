#include "ashlar/plan/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/text.h"

namespace ashlar::plan {
namespace {

constexpr int64_t kMaxEventBytes = int64_t{4} << 30;
constexpr size_t kShownRows = 8;

std::string directory_of_traces(FileSystem& files, const std::string& directory) {
  const std::string inner = join(directory, "trace");
  const auto info = files.stat(inner, LinkPolicy::kFollow);
  return info && info->type == FileInfo::Type::kDirectory ? inner : directory;
}

// Adds the events of a file, which has one in each line, and returns its otherData.
class EventSums {
 public:
  Json add(const std::string& text, const std::string& name) {
    Json about;
    size_t begin = 0;
    for (int64_t number = 1; begin < text.size(); ++number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line(text.data() + begin, end - begin);
      begin = end + 1;
      if (number == 1) {
        about = parse_json(std::string(line) + "]}", name, ErrorKind::kData);
        continue;
      }
      if (line.ends_with(',')) line.remove_suffix(1);
      if (!line.starts_with("{\"ph\":\"X\"") || line.find("\"cat\":") == line.npos) continue;
      const std::string where = fmt::format("{}, line {}", name, number);
      const Json event = parse_json(line, where, ErrorKind::kData);
      add_event(Fields(event, where, ErrorKind::kData), where);
    }
    const Fields file(about, name, ErrorKind::kData);
    return file.at("otherData");
  }

  // The sums of the mean rank and step.
  StepSums per_step(int num_ranks, int num_steps) const {
    StepSums mean = sums_;
    const double by = 1.0 / (double(num_ranks) * num_steps);
    for (double* s : {&mean.step_s, &mean.kernels_s, &mean.waits_s, &mean.posts_s}) *s *= by;
    for (auto* rows : {&mean.kernels, &mean.phases, &mean.waits})
      for (auto& [row, seconds] : *rows) seconds *= by;
    mean.num_ranks = num_ranks, mean.num_steps = num_steps;
    return mean;
  }
  int64_t num_steps() const { return num_steps_; }

 private:
  void add_event(const Fields& event, const std::string& where) {
    const std::string &category = event.text("cat"), &name = event.text("name");
    const double seconds = 1e-6 * event.number("dur");
    if (category == "step") {
      sums_.step_s += seconds;
      ++num_steps_;
    }
    if (category != "kernel" && category != "wait" && category != "post") return;
    const Fields args(event.at("args"), where + ": args", ErrorKind::kData);
    sums_.phases[args.text("phase")] += seconds;
    if (category == "kernel") {
      sums_.kernels_s += seconds;
      sums_.kernels[name] += seconds;
    } else if (category == "wait") {
      sums_.waits_s += seconds;
      sums_.waits[name] += seconds;
    } else {
      sums_.posts_s += seconds;
    }
  }

  StepSums sums_;
  int64_t num_steps_ = 0;
};

std::string row(std::string_view name, double recorded_s, double simulated_s, double step_s) {
  return fmt::format("{:<40} {:>12.3f} {:>12.3f} {:>+12.3f} {:>+9.1f} %\n", name, 1e3 * recorded_s,
                     1e3 * simulated_s, 1e3 * (simulated_s - recorded_s),
                     100 * (simulated_s - recorded_s) / step_s);
}

using Sums = std::map<std::string, double>;

// The names of both, those whose seconds differ most first.
std::vector<std::string> by_difference(const Sums& recorded, const Sums& simulated) {
  const auto value = [](const Sums& sums, const std::string& name) {
    const auto found = sums.find(name);
    return found == sums.end() ? 0 : found->second;
  };
  std::vector<std::string> names;
  for (const auto& [name, s] : recorded) names.push_back(name);
  for (const auto& [name, s] : simulated)
    if (!recorded.contains(name)) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return std::abs(value(simulated, a) - value(recorded, a)) >
           std::abs(value(simulated, b) - value(recorded, b));
  });
  return names;
}

double at(const Sums& sums, const std::string& name) {
  const auto found = sums.find(name);
  return found == sums.end() ? 0 : found->second;
}

std::string table(std::string_view title, const Sums& recorded, const Sums& simulated,
                  double step_s, size_t most) {
  std::string text = fmt::format("\n{}\n", title);
  const auto names = by_difference(recorded, simulated);
  for (size_t i = 0; i < std::min(most, names.size()); ++i)
    text += row("  " + names[i], at(recorded, names[i]), at(simulated, names[i]), step_s);
  if (names.size() > most)
    text += fmt::format("  ... {} more, which part less (--json)\n", names.size() - most);
  return text;
}

Ordered pair_json(double recorded, double simulated) {
  return {{"recorded_s", recorded}, {"simulated_s", simulated}};
}

Ordered table_json(const Sums& recorded, const Sums& simulated) {
  Ordered json = Ordered::object();
  for (const std::string& name : by_difference(recorded, simulated))
    json[name] = pair_json(at(recorded, name), at(simulated, name));
  return json;
}

void require_same_ranks(const StepSums& recorded, const StepSums& simulated) {
  ASHLAR_REQUIRE(recorded.num_ranks == simulated.num_ranks, kConfig,
                 "the run has {} ranks and the simulation {}; simulate the run's layout",
                 recorded.num_ranks, simulated.num_ranks);
}

std::string memory_text(const MemoryRow& memory) {
  if (memory.allocated_bytes == 0)
    return "\nmemory: the directory has no metrics.jsonl with a row of memory\n";
  std::string text = fmt::format("\nmemory of rank 0: planned and allocated {}\n",
                                 format_bytes(memory.allocated_bytes));
  if (memory.resident_bytes > 0)
    text +=
        fmt::format("  its process has {} rank{} and {} resident: {} outside of the plan\n",
                    memory.ranks, memory.ranks == 1 ? "" : "s", format_bytes(memory.resident_bytes),
                    format_bytes(std::max<int64_t>(
                        0, memory.resident_bytes - memory.ranks * memory.allocated_bytes)));
  return text;
}

}  // namespace

StepSums recorded_sums(FileSystem& files, const std::string& directory) {
  const std::string place = directory_of_traces(files, directory);
  EventSums sums;
  std::set<int64_t> ranks;
  int64_t expected = 0;
  for (const std::string& name : files.list(place)) {
    if (!name.ends_with(".json") || name.find("-rank-") == name.npos) continue;
    const std::string path = join(place, name);
    const Json data = sums.add(read_text(files, path, kMaxEventBytes), path);
    const Fields about(data, path + ": otherData", ErrorKind::kData);
    ASHLAR_REQUIRE(about.text("format") == "ashlar-trace-2", kData,
                   "{} has the format {}; expected ashlar-trace-2", path,
                   printable(about.text("format")));
    ASHLAR_REQUIRE(!about.has("dry"), kData,
                   "{} is of a dry run, whose times mean nothing; record a run "
                   "(train.trace_steps)",
                   path);
    expected = about.count("ranks");
    ASHLAR_REQUIRE(ranks.insert(about.count("rank")).second, kData,
                   "{} has several recordings of rank {}; keep one of them", place,
                   about.count("rank"));
  }
  ASHLAR_REQUIRE(!ranks.empty(), kData, "{} has no trace files; record some (train.trace_steps)",
                 place);
  ASHLAR_REQUIRE(int64_t(ranks.size()) == expected, kData,
                 "{} has the traces of {} ranks; expected those of all {}", place, ranks.size(),
                 expected);
  ASHLAR_REQUIRE(sums.num_steps() > 0, kData, "the traces of {} have no step", place);
  return sums.per_step(int(expected), int(sums.num_steps() / expected));
}

StepSums simulated_sums(FileSystem& files, const std::string& path) {
  EventSums sums;
  const Json data = sums.add(read_text(files, path, kMaxEventBytes), path);
  const Fields about(data, path + ": otherData", ErrorKind::kData);
  ASHLAR_REQUIRE(about.has("format") && about.text("format") == "ashlar-simulation-1", kData,
                 "{} is no timeline of a simulation (ashlar plan simulate --perfetto)", path);
  StepSums mean = sums.per_step(int(about.count("ranks")), 1);
  mean.step_s = about.number("step_s");
  return mean;
}

MemoryRow memory_row(FileSystem& files, const std::string& directory) {
  MemoryRow memory;
  for (const std::string& place : {directory, parent_of(directory)}) {
    const std::string path = join(place, "metrics.jsonl");
    if (!files.stat(path, LinkPolicy::kFollow)) continue;
    for (const std::string& line : split(read_text(files, path, kMaxEventBytes), '\n')) {
      if (line.find("\"event\":\"memory\"") == line.npos) continue;
      const Json json = parse_json(line, path, ErrorKind::kData);
      const Fields event(json, path, ErrorKind::kData);
      memory = {};
      for (const auto& [tag, bytes] : event.at("tags").items())
        memory.allocated_bytes += integer_of(bytes).value_or(0);
      if (event.has("resident_bytes")) {
        memory.resident_bytes = event.count("resident_bytes");
        memory.ranks = event.count("ranks_in_process");
      }
    }
    break;
  }
  return memory;
}

std::string describe_comparison(const StepSums& recorded, const StepSums& simulated,
                                const MemoryRow& memory) {
  require_same_ranks(recorded, simulated);
  const double step_s = recorded.step_s;
  std::string text = fmt::format("ms of a step, of the mean of {} ranks and {} recorded steps\n",
                                 recorded.num_ranks, recorded.num_steps);
  text += fmt::format("{:<40} {:>12} {:>12} {:>12} {:>11}\n", "", "recorded", "simulated",
                      "difference", "of the step");
  text += row("step", recorded.step_s, simulated.step_s, step_s);
  text += row("  kernels", recorded.kernels_s, simulated.kernels_s, step_s);
  text += row("  waits", recorded.waits_s, simulated.waits_s, step_s);
  text += row("  posts", recorded.posts_s, simulated.posts_s, step_s);
  text += row("  rest", recorded.rest_s(), simulated.rest_s(), step_s);
  text += table("by phase", recorded.phases, simulated.phases, step_s, 100);
  text += table("kernels that part most", recorded.kernels, simulated.kernels, step_s, kShownRows);
  text += table("waits that part most", recorded.waits, simulated.waits, step_s, kShownRows);
  text += memory_text(memory);
  text.pop_back();
  return text;
}

std::string comparison_json(const StepSums& recorded, const StepSums& simulated,
                            const MemoryRow& memory) {
  require_same_ranks(recorded, simulated);
  Ordered json = {{"format", "ashlar-comparison-1"},
                  {"ranks", recorded.num_ranks},
                  {"recorded_steps", recorded.num_steps},
                  {"step", pair_json(recorded.step_s, simulated.step_s)},
                  {"kernels", pair_json(recorded.kernels_s, simulated.kernels_s)},
                  {"waits", pair_json(recorded.waits_s, simulated.waits_s)},
                  {"posts", pair_json(recorded.posts_s, simulated.posts_s)},
                  {"rest", pair_json(recorded.rest_s(), simulated.rest_s())},
                  {"by_phase", table_json(recorded.phases, simulated.phases)},
                  {"by_kernel", table_json(recorded.kernels, simulated.kernels)},
                  {"by_wait", table_json(recorded.waits, simulated.waits)}};
  if (memory.allocated_bytes > 0) {
    json["memory"] = {{"allocated_bytes", memory.allocated_bytes}};
    if (memory.resident_bytes > 0) {
      json["memory"]["resident_bytes"] = memory.resident_bytes;
      json["memory"]["ranks_in_process"] = memory.ranks;
    }
  }
  return one_line(json);
}

}  // namespace ashlar::plan
