#include "ashlar/train/run_status.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "ashlar/core/json.h"
#include "ashlar/core/process.h"
#include "ashlar/core/pulse_hang.h"
#include "ashlar/core/text.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/machine.h"

namespace ashlar::train {
namespace {

constexpr int64_t kTailBytes = 256 << 10;
constexpr size_t kNumRateRows = 20, kNumEvents = 10;

// The whole lines at the end of a file; none if it is missing.  Others may cut or replace it.
std::vector<std::string> last_lines(FileSystem& files, const std::string& path) {
  std::string text;
  bool is_cut = false;
  try {
    if (!files.stat(path)) return {};
    const auto file = files.open(path);
    const int64_t size = file->size(), begin = std::max<int64_t>(0, size - kTailBytes);
    is_cut = begin > 0;
    text.resize(size_t(size - begin));
    file->read_at(std::as_writable_bytes(std::span(text)), begin);
  } catch (const Error&) {
    return {};
  }
  std::vector<std::string> lines = split(text, '\n');
  lines.pop_back();  // what follows the last newline: nothing, or a row that is being written
  if (is_cut && !lines.empty()) lines.erase(lines.begin());
  return lines;
}

double status_number(const Json& row, const char* key) {
  return row.contains(key) && row[key].is_number() ? row[key].get<double>() : std::nan("");
}

std::string status_word(const Json& row, const char* key) {
  return row.contains(key) && row[key].is_string() ? row[key].get<std::string>() : "";
}

void add_event(const Json& row, const std::string& line, std::vector<std::string>& events) {
  // The loads of experts are for reports: a row has thousands of numbers.
  if (const std::string name = status_word(row, "event"); name == "expert_loads") return;
  events.push_back(line);
}

void read_metrics(FileSystem& files, const std::string& run_directory, RunFacts& facts) {
  std::vector<Json> steps;
  for (const std::string& line : last_lines(files, join(run_directory, "metrics.jsonl"))) {
    Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    if (!row.contains("event")) {
      steps.push_back(std::move(row));
      continue;
    }
    const double step = status_number(row, "step");
    if (status_word(row, "event") == "checkpoint" && step >= 0) facts.saved_step = int64_t(step);
    add_event(row, line, facts.events);
  }
  if (steps.empty()) return;
  const double last = status_number(steps.back(), "step");
  if (last >= 0) facts.step = int64_t(last);
  facts.loss = status_number(steps.back(), "loss");
  if (steps.size() > kNumRateRows) steps.erase(steps.begin(), steps.end() - kNumRateRows);
  double seconds = 0, tokens = 0;
  for (const Json& row : steps) {
    const double step_s = status_number(row, "step_s"), rate = status_number(row, "tokens_per_s");
    if (!(step_s > 0)) continue;
    seconds += step_s;
    tokens += std::isfinite(rate) ? rate * step_s : 0;
    facts.longest_step_s = std::max(facts.longest_step_s, step_s);
  }
  if (seconds > 0) facts.tokens_per_s = tokens / seconds;
  facts.step_s = seconds / double(steps.size());
}

bool is_locked(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  struct flock lock {};  // asks, and takes nothing
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool locked = fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  return locked;
}

void read_launch(FileSystem& files, const std::string& run_directory, RunFacts& facts) {
  const std::string directory = join(run_directory, "launch");
  std::vector<std::string> events;
  for (const std::string& line : last_lines(files, join(directory, "events.jsonl"))) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    facts.launch_event = status_word(row, "event");
    facts.launch_action = status_word(row, "action");
    if (const double attempt = status_number(row, "attempt"); attempt >= 0)
      facts.launch_attempt = int64_t(attempt);
    // A launcher's end has it; what follows is of a later launcher.
    facts.launch_goodput = row.contains("goodput") ? row["goodput"].dump() : "";
    add_event(row, line, events);
  }
  // A launcher's events say more than those of the ranks.
  if (!events.empty()) facts.events = std::move(events);
  facts.launcher_lives = is_locked(join(directory, "lock"));
}

std::vector<std::string> other_machines(FileSystem& files, const std::string& run_directory) {
  const std::string directory = join(run_directory, "pulse");
  std::vector<std::string> machines;
  if (files.stat(directory)) machines = files.list(directory);
  std::erase_if(machines, [](const std::string& name) {
    return name == host_name() || name.ends_with(".tmp");
  });
  return machines;
}

// 0 if the recipe is missing, or another version wrote it.
int64_t steps_in_recipe(FileSystem& files, const std::string& run_directory) {
  const std::string path = join(run_directory, "recipe.toml");
  try {
    if (files.stat(path)) return parse_saved_recipe(read_text(files, path), path).train.steps;
  } catch (const Error&) {
  }
  return 0;
}

// When anything last changed on any living rank.
double silence_s(const RunFacts& facts) {
  int64_t moved_ns = 0;
  for (const auto& [rank, page] : facts.pages)
    if (!facts.gone.contains(rank)) moved_ns = std::max(moved_ns, page.moved_ns());
  return double(facts.now_ns - moved_ns) * 1e-9;
}

std::string gone_text(const RunFacts& facts) {
  const std::vector<int> gone(facts.gone.begin(), facts.gone.end());
  return fmt::format("{} {} gone without a word: killed, or out of memory", format_ranks(gone),
                     gone.size() == 1 ? "is" : "are");
}

void judge_without_ranks(RunStatus& status) {
  const RunFacts& facts = status.facts;
  // By the pages: later starts may do without a launcher.
  const bool was_launched = !facts.launch_event.empty() &&
                            (facts.pages.empty() || facts.pages.begin()->second.attempt > 0);
  if (facts.num_steps > 0 && facts.step >= facts.num_steps) {
    status.state = RunState::kDone;
  } else if (facts.launcher_lives) {
    status.state = RunState::kRecovering;
    status.reason = fmt::format("the launcher's last event is {}", facts.launch_event);
  } else if (was_launched && facts.launch_event == "stop") {
    status.reason = facts.launch_action;
  } else if (was_launched) {
    status.state = RunState::kNoHeartbeat;
    status.reason = fmt::format("the launcher is gone without a word; its last event is {}",
                                facts.launch_event);
  } else if (!facts.gone.empty()) {
    status.state = RunState::kNoHeartbeat;
    status.reason = gone_text(facts);
  } else if (!facts.machines.empty()) {
    status.state = RunState::kNoHeartbeat;
    status.reason = "no rank runs on this machine";
  } else {
    status.reason = "no rank runs";
  }
}

}  // namespace

std::string_view name_of(RunState state) {
  static constexpr std::string_view kNames[] = {"running", "done", "recovering", "stopped",
                                                "no_heartbeat"};
  return kNames[size_t(state)];
}

int exit_code(RunState state) {
  static constexpr int kCodes[] = {0, 0, 3, 4, 5};
  return kCodes[size_t(state)];
}

double silence_limit_s(const RunFacts& facts) {
  const bool stepped =
      std::ranges::any_of(facts.pages, [](const auto& page) { return page.second.steps_here > 0; });
  return stepped ? std::clamp(8 * facts.longest_step_s, 10.0, 300.0) : 120.0;
}

RunStatus judge(RunFacts read) {
  RunStatus status{std::move(read), RunState::kStopped, "", ""};
  const RunFacts& facts = status.facts;
  if (facts.pages.size() == facts.gone.size()) {
    judge_without_ranks(status);
    return status;
  }
  const double silence = silence_s(facts);
  status.state = RunState::kRunning;
  if (silence > silence_limit_s(facts)) {
    status.reason = fmt::format("nothing has changed for {:.0f} s", silence);
    status.hang = describe(find_hang(facts.pages), facts.pages, facts.now_ns);
  } else if (!facts.gone.empty()) {
    status.reason = gone_text(facts);
  }
  if (!status.reason.empty())
    status.state = facts.launcher_lives ? RunState::kRecovering : RunState::kNoHeartbeat;
  return status;
}

RunFacts read_facts(FileSystem& files, const std::string& run_directory) {
  ASHLAR_REQUIRE(files.stat(run_directory, LinkPolicy::kFollow), kConfig,
                 "{} does not exist; expected a run's directory (train.run_dir)", run_directory);
  RunFacts facts;
  facts.pages = read_pulse(run_directory);
  facts.now_ns = pulse_now_ns();
  for (const auto& [rank, page] : facts.pages) {
    if (!is_alive(page)) {
      facts.gone.insert(rank);
    } else if (const auto stat = stat_of_thread(page.process, page.thread)) {
      if (stat->state == 'T' || stat->state == 't') facts.held[rank] = 'T';
      if (stat->state == 'D') facts.held[rank] = 'D';
    }
    facts.num_steps = std::max(facts.num_steps, page.num_steps);
  }
  read_metrics(files, run_directory, facts);
  read_launch(files, run_directory, facts);
  facts.machines = other_machines(files, run_directory);
  if (facts.num_steps == 0) facts.num_steps = steps_in_recipe(files, run_directory);
  const bool is_run =
      facts.num_steps > 0 || facts.step >= 0 || !facts.events.empty() || facts.launcher_lives;
  ASHLAR_REQUIRE(is_run, kConfig,
                 "{} is no run: it has no metrics.jsonl, no recipe.toml and no ranks here; "
                 "expected a run's directory (train.run_dir)",
                 run_directory);
  if (facts.events.size() > kNumEvents)
    facts.events.erase(facts.events.begin(), facts.events.end() - kNumEvents);
  return facts;
}

}  // namespace ashlar::train
