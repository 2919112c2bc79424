#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "ashlar/core/json.h"
#include "ashlar/core/pulse_hang.h"
#include "ashlar/core/text.h"
#include "ashlar/train/run_status.h"

namespace ashlar::train {
namespace {

constexpr int kStatusVersion = 1;

int64_t attempt_of(const RunFacts& facts) {
  int64_t attempt = facts.launch_attempt;
  for (const auto& [rank, page] : facts.pages) attempt = std::max(attempt, page.attempt);
  return attempt;
}

// Updates done: rows reach the file some seconds after a page has them.
int64_t step_of(const RunFacts& facts) {
  int64_t step = facts.step;
  for (const auto& [rank, page] : facts.pages) step = std::max(step, page.step);
  return step;
}

// The time left at the present rate; negative: unknown, or the run does not train.
double left_s(const RunStatus& status) {
  const RunFacts& facts = status.facts;
  if (status.state != RunState::kRunning || facts.num_steps == 0 || facts.step_s == 0) return -1;
  return double(facts.num_steps - step_of(facts)) * facts.step_s;
}

std::string operation_text(const PulsePage& page, const PulseOperation& operation) {
  const std::string& group = page.groups[size_t(operation.group)].name;
  return operation.number < 0 ? fmt::format("{} '{}' of {}", operation.op, operation.label, group)
                              : fmt::format("{} '{}' number {} of {}", operation.op,
                                            operation.label, operation.number, group);
}

// The same for all ranks that do the same.
std::string activity(const RunFacts& facts, const PulsePage& page) {
  std::string text = place_text(page);
  if (page.total > 0) text += fmt::format(", {} of {}", page.done, page.total);
  if (page.place != PulsePlace::kEnd) text += fmt::format(", step {}", page.step + 1);
  if (facts.gone.contains(page.rank)) return "gone; was in " + text;
  if (const auto held = facts.held.find(page.rank); held != facts.held.end())
    text = (held->second == 'T' ? "suspended (state T) in " : "waits for a device (state D) in ") +
           text;
  if (const PulseOperation* const awaited = page.awaited())
    text += "; waits for " + operation_text(page, *awaited);
  return text;
}

std::string ranks_lines(const RunFacts& facts) {
  struct Alike {
    std::vector<int> ranks;
    double shortest_s = INFINITY, longest_s = 0;
  };
  std::vector<std::pair<std::string, Alike>> all;
  for (const auto& [rank, page] : facts.pages) {
    const std::string what = activity(facts, page);
    auto found = std::ranges::find(all, what, &std::pair<std::string, Alike>::first);
    if (found == all.end()) found = all.insert(all.end(), {what, {}});
    const double age_s = double(facts.now_ns - page.moved_ns()) * 1e-9;
    found->second.ranks.push_back(rank);
    found->second.shortest_s = std::min(found->second.shortest_s, age_s);
    found->second.longest_s = std::max(found->second.longest_s, age_s);
  }
  std::string text;
  for (const auto& [what, alike] : all) {
    const std::string age =
        alike.ranks.size() == 1
            ? fmt::format("{:.1f} s ago", alike.longest_s)
            : fmt::format("{:.1f} to {:.1f} s ago", alike.shortest_s, alike.longest_s);
    text += fmt::format("{}: {} (changed {})\n", format_ranks(alike.ranks), what, age);
  }
  return text;
}

std::string step_line(const RunStatus& status) {
  const RunFacts& facts = status.facts;
  std::string text = fmt::format("step {}", std::max<int64_t>(0, step_of(facts)));
  if (facts.num_steps > 0) text += fmt::format(" of {}", facts.num_steps);
  if (facts.step_s > 0)
    text += fmt::format(": {:.3g} s a step, {} tokens/s", facts.step_s,
                        format_thousands(int64_t(std::lround(facts.tokens_per_s))));
  if (facts.step >= 0 && std::isfinite(facts.loss))
    text += fmt::format(", loss {:.4f}", facts.loss);
  if (facts.saved_step >= 0) text += fmt::format(", saved step {}", facts.saved_step);
  if (const double left = left_s(status); left > 0)
    text += fmt::format(", {} left", format_duration(left));
  return text;
}

// A number as JSON has it, null if it is not finite.
Ordered number_or_null(double value) {
  return std::isfinite(value) ? Ordered(value) : Ordered(nullptr);
}

Ordered rank_json(const RunFacts& facts, const PulsePage& page) {
  Ordered json{
      {"rank", page.rank},
      {"process", page.process},
      {"alive", !facts.gone.contains(page.rank)},
      {"held", facts.held.contains(page.rank) ? Ordered(std::string(1, facts.held.at(page.rank)))
                                              : Ordered(nullptr)},
      {"step", page.step},
      {"place", name_of(page.place)},
      {"block", page.block},
      {"micro_batch", page.micro_batch},
      {"in_place_s", double(facts.now_ns - page.changed_ns) * 1e-9},
      {"silent_s", double(facts.now_ns - page.moved_ns()) * 1e-9},
      {"done", page.done},
      {"total", page.total},
      {"waits_for", nullptr}};
  if (const PulseOperation* const awaited = page.awaited())
    json["waits_for"] = {{"op", awaited->op},
                         {"label", awaited->label},
                         {"group", page.groups[size_t(awaited->group)].name},
                         {"number", awaited->number},
                         {"bytes", awaited->bytes},
                         {"for_s", double(facts.now_ns - page.waiting_ns) * 1e-9}};
  return json;
}

std::string member_text(const std::string& key, const Ordered& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{} {:.3g}", key, value.get<double>());
  if (value.is_primitive() && !value.is_null()) return fmt::format("{} {}", key, value.dump());
  if (!value.is_array()) return "";
  std::string ends, others;  // of evidence: that processes are gone says less than anything else
  for (const Ordered& each : value) {
    if (!each.is_object() || !each.contains("text") || !each["text"].is_string()) continue;
    std::string& texts = each.value("kind", Ordered()) == "gone" ? ends : others;
    texts += (texts.empty() ? "" : "; ") + each["text"].get<std::string>();
  }
  return others.empty() ? ends : others;
}

// "10:20:30 attempt 1: fault, killed, confidence 0.7, rank 1, process 42 of rank 1 is gone".
std::string event_text(const std::string& line) {
  const Ordered row = Ordered::parse(line, nullptr, false);
  if (!row.is_object()) return line;
  std::string text;
  if (row.contains("t") && row["t"].is_number()) {
    const auto seconds = std::time_t(row["t"].get<double>());
    std::tm local{};
    localtime_r(&seconds, &local);
    text = fmt::format("{:02}:{:02}:{:02} ", local.tm_hour, local.tm_min, local.tm_sec);
  }
  if (row.contains("attempt")) text += fmt::format("attempt {}: ", row["attempt"].dump());
  if (row.contains("event") && row["event"].is_string()) text += row["event"].get<std::string>();
  for (const auto& [key, value] : row.items()) {
    if (key == "v" || key == "t" || key == "mono" || key == "epoch" || key == "attempt" ||
        key == "event")
      continue;
    if (const std::string member = member_text(key, value); !member.empty()) text += ", " + member;
  }
  return text;
}

// Shares of the launcher's time, largest first.
std::string goodput_text(const std::string& seconds_of_class) {
  const Ordered classes = Ordered::parse(seconds_of_class, nullptr, false);
  double sum = 0;
  std::vector<std::pair<double, std::string>> all;
  for (const auto& [name, seconds] : classes.items()) {
    if (!seconds.is_number() || seconds.get<double>() <= 0) continue;
    all.push_back({seconds.get<double>(), name});
    sum += seconds.get<double>();
  }
  std::ranges::sort(all, std::greater());
  std::string text;
  for (const auto& [seconds, name] : all)
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", name, 100 * seconds / sum);
  return text;
}

}  // namespace

std::string status_text(const RunStatus& status) {
  const RunFacts& facts = status.facts;
  std::string text(status.state == RunState::kNoHeartbeat ? "no heartbeat" : name_of(status.state));
  if (const int64_t attempt = attempt_of(facts); attempt > 0)
    text += fmt::format(", attempt {}", attempt);
  if (!status.reason.empty()) text += ": " + status.reason;
  text += "\n" + step_line(status) + "\n";
  if (!status.hang.empty()) text += status.hang + "\n";
  text += ranks_lines(facts);
  if (!facts.machines.empty())
    text += fmt::format("more ranks may run on {}: ask there\n", fmt::join(facts.machines, ", "));
  if (!facts.launch_goodput.empty())
    text += fmt::format("goodput: {}\n", goodput_text(facts.launch_goodput));
  constexpr size_t kMostColumns = 160;
  for (const std::string& line : facts.events) {
    const std::string event = event_text(line);
    text += event.size() <= kMostColumns ? event + "\n" : event.substr(0, kMostColumns) + "...\n";
  }
  text.pop_back();
  return text;
}

std::string status_json(const RunStatus& status) {
  const RunFacts& facts = status.facts;
  const double left = left_s(status);
  Ordered ranks = Ordered::array(), events = Ordered::array();
  for (const auto& [rank, page] : facts.pages) ranks.push_back(rank_json(facts, page));
  for (const std::string& event : facts.events)
    events.push_back(Ordered::parse(event, nullptr, false));
  return one_line({{"v", kStatusVersion},
                   {"state", name_of(status.state)},
                   {"reason", status.reason},
                   {"hang", status.hang},
                   {"attempt", attempt_of(facts)},
                   {"step", std::max<int64_t>(0, step_of(facts))},
                   {"num_steps", facts.num_steps},
                   {"saved_step", facts.saved_step},
                   {"step_s", facts.step_s},
                   {"tokens_per_s", facts.tokens_per_s},
                   {"loss", facts.step < 0 ? Ordered(nullptr) : number_or_null(facts.loss)},
                   {"left_s", left < 0 ? Ordered(nullptr) : Ordered(left)},
                   {"ranks", ranks},
                   {"machines", facts.machines},
                   {"goodput", facts.launch_goodput.empty()
                                   ? Ordered(nullptr)
                                   : Ordered::parse(facts.launch_goodput, nullptr, false)},
                   {"events", events}});
}

}  // namespace ashlar::train
