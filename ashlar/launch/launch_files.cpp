#include "ashlar/launch/launch_files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "ashlar/checkpoint/root/recovery.h"
#include "ashlar/core/fields.h"
#include "ashlar/core/json.h"
#include "ashlar/core/pulse.h"
#include "ashlar/core/text.h"

namespace ashlar::launch {
namespace {

constexpr int64_t kStateVersion = 1;
constexpr int64_t kSkipWindow = 1000;                     // steps, as of health.max_skips_per_1000
constexpr int64_t kMostMetricsBytes = int64_t{16} << 20;  // of the last 1000 steps and more

FaultClass fault_named(const Fields& fields, const std::string& name) {
  for (int i = 0; i <= int(FaultClass::kUnknown); ++i)
    if (name == name_of(FaultClass(i))) return FaultClass(i);
  fields.fail("faults holds '{}', which is no class of faults", name);
}

// The last whole rows of a file of any size.
std::vector<std::string> last_rows(FileSystem& files, const std::string& path) {
  if (!files.stat(path)) return {};
  const auto file = files.open(path);
  const int64_t size = file->size(), bytes = std::min(size, kMostMetricsBytes);
  std::string text(size_t(bytes), '\0');
  file->read_at(std::as_writable_bytes(std::span(text)), size - bytes);
  if (bytes < size) text.erase(0, text.find('\n') + 1);
  return split(text, '\n');
}

}  // namespace

LaunchLock::LaunchLock(const std::string& path)
    : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)) {
  ASHLAR_REQUIRE(fd_ >= 0, kStorage, "{}: open: {}", path, strerror(errno));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fd_, F_OFD_SETLK, &whole) == 0) return;
  close(fd_);
  ASHLAR_FAIL(kConfig,
              "{} is locked: another ashlar launch runs this directory; stop it, or "
              "choose another train.run_dir",
              path);
}

LaunchLock::~LaunchLock() {
  close(fd_);
}

int next_attempt(FileSystem& files, const std::string& ranks) {
  int last = 0;
  if (!files.stat(ranks)) return 1;
  for (const std::string& name : files.list(ranks)) {
    int number = 0;
    std::from_chars(name.data(), name.data() + name.size(), number);
    last = std::max(last, number);
  }
  return last + 1;
}

CommittedSteps steps_in(FileSystem& files, const std::string& root) {
  CommittedSteps steps;
  if (!files.stat(root)) return steps;
  for (const checkpoint::StepRef& step : checkpoint::committed_steps(files, root))
    steps = {step.step, steps.newest};
  return steps;
}

int64_t newest_step_before(FileSystem& files, const std::string& root, int64_t step) {
  int64_t newest = -1;
  if (!files.stat(root)) return newest;
  for (const checkpoint::StepRef& found : checkpoint::committed_steps(files, root))
    if (found.step < step) newest = std::max(newest, found.step);
  return newest;
}

std::vector<int64_t> launched_processes(const std::string& run_directory) {
  std::vector<int64_t> processes;
  try {
    for (const auto& [rank, page] : read_pulse(run_directory))
      if (page.attempt > 0 && is_alive(page)) processes.push_back(page.process);
  } catch (const Error&) {  // another user's pages: Watch warns
  }
  return processes;
}

PolicyState read_policy_state(FileSystem& files, const std::string& path, double since_epoch_s) {
  PolicyState state;
  if (!files.stat(path)) return state;
  const std::string place = path + " (if it is removed, the counts begin anew)";
  const Json json = parse_json(read_text(files, path), place, ErrorKind::kCorrupt);
  const Fields fields(json, place);
  fields.only({"v", "num_faults", "restarts", "furthest", "signatures", "faults", "from_step",
               "rate_factor"});
  fields.integer("v", kStateVersion, kStateVersion);
  state.num_faults = int(fields.integer("num_faults", 0, INT32_MAX));
  for (const Json& time : fields.array("restarts")) {
    if (!time.is_number()) fields.fail("restarts holds {}; expected a number", shown(time));
    state.restarts.push_back(time.get<double>() - since_epoch_s);
  }
  state.furthest = fields.integer("furthest", -1, INT64_MAX);
  for (const Json& text : fields.array("signatures"))
    state.signatures.push_back(text.is_string() ? text.get<std::string>() : shown(text));
  for (const Json& name : fields.array("faults"))
    state.faults.push_back(fault_named(fields, name.is_string() ? name.get<std::string>() : ""));
  if (fields.has("from_step")) state.from_step = fields.count("from_step");
  state.rate_factor = fields.number("rate_factor");
  if (!(state.rate_factor > 0 && state.rate_factor <= 1))
    fields.fail("rate_factor is {}; expected a number above 0 and at most 1", state.rate_factor);
  return state;
}

void write_policy_state(FileSystem& files, const std::string& path, const PolicyState& state,
                        double since_epoch_s) {
  Ordered restarts = Ordered::array(), faults = Ordered::array();
  for (const double time : state.restarts) restarts.push_back(time + since_epoch_s);
  for (const FaultClass fault : state.faults) faults.push_back(name_of(fault));
  Ordered json{{"v", kStateVersion},
               {"num_faults", state.num_faults},
               {"restarts", restarts},
               {"furthest", state.furthest},
               {"signatures", state.signatures},
               {"faults", faults},
               {"rate_factor", state.rate_factor}};
  if (state.from_step) json["from_step"] = *state.from_step;
  write_text(files, path, one_line(json) + "\n");
}

int64_t last_step_done(FileSystem& files, const std::string& metrics) {
  const std::vector<std::string> rows = last_rows(files, metrics);
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    const Json json = Json::parse(*row, nullptr, false);
    if (json.is_object() && json.contains("loss") && json.contains("step"))
      return integer_of(json["step"]).value_or(0);
  }
  return 0;
}

std::vector<HarmfulStep> skipped_steps(FileSystem& files, const std::string& metrics) {
  std::map<int64_t, HarmfulStep> skipped;  // by step
  for (const std::string& line : last_rows(files, metrics)) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("event") || row["event"] != "skip") continue;
    const Fields fields(row, metrics);
    if (fields.has("targets") && fields.count("targets") == 0) continue;
    const int64_t step = fields.count("step");
    skipped[step] = {step, fields.counts("samples"), fields.text("reason")};
  }
  std::vector<HarmfulStep> recent;
  for (auto& [number, step] : skipped)
    if (number > skipped.rbegin()->first - kSkipWindow) recent.push_back(std::move(step));
  return recent;
}

int64_t begin_of_last_trouble(std::span<const HarmfulStep> skipped) {
  constexpr int64_t kMostApart = 50;
  size_t first = skipped.size() - 1;
  while (first > 0 && skipped[first].step - skipped[first - 1].step <= kMostApart) --first;
  return skipped[first].step;
}

}  // namespace ashlar::launch
