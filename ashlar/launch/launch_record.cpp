#include "ashlar/launch/launch_record.h"

#include <fmt/format.h>

#include <algorithm>

#include "ashlar/core/pulse_hang.h"
#include "ashlar/launch/moments.h"

namespace ashlar::launch {
namespace {

// Whether the evidence is about the process of one rank, and its text does not name that rank.
bool says_rank(EvidenceKind kind) {
  return kind == EvidenceKind::kExit || kind == EvidenceKind::kSignal;
}

}  // namespace

LaunchRecord::LaunchRecord(const Place& place, const std::vector<std::string>& notify,
                           FileSystem& files, Log& log)
    : log_(log),
      rank_log_(files, place.directory, log, unix_now_s),
      notifier_(notify, log),
      events_(files, join(place.directory, "events.jsonl"), place.epoch, notifier_, log),
      goodput_(now_s()) {
  if (place.metrics.empty()) return;
  server_.emplace(place.metrics);
  log_.info("Prometheus can read /metrics at port {}", server_->port());
}

void LaunchRecord::tell(const std::string& line) {
  rank_log_.note(line);
  log_.info("{}", line);
}

void LaunchRecord::tell_of_nodes(int attempt, const std::string& line) {
  tell(line);
  events_.add("node", attempt, {{"action", line}});
}

void LaunchRecord::tell_advice(int attempt, const Advice& advice) {
  tell(fmt::format("{}: {}", advice.name, advice.text));
  events_.add("check", attempt,
              {{"class", advice.name}, {"rank", advice.rank}, {"action", advice.text}});
}

void LaunchRecord::tell_fault(const Fault& fault, double now) {
  const Cause& cause = fault.cause;
  goodput_.move_to_detect(fault.detect_s);
  named_s_ = now;
  const bool by_rank = cause.rank >= 0 && says_rank(cause.kind);
  std::string where;
  if (by_rank && fault.page)
    where = fmt::format(", after step {} in {}", fault.page->step, place_text(*fault.page));
  tell(fmt::format("fault {}: {}{}{}", fault.number,
                   by_rank ? fmt::format("rank {}: ", cause.rank) : "", cause.text, where));
  std::string evidence;
  for (const Evidence& seen : cause.evidence)
    evidence += fmt::format("{}{}", evidence.empty() ? "" : "; ", seen.text);
  tell(fmt::format("evidence: {} ({:.2f} {})", evidence, cause.confidence, name_of(cause.fault)));
  ++numbers_.faults[name_of(cause.fault)];
  numbers_.detect_s += fault.detect_s;
  Ordered members = members_of(cause);
  members["step"] = fault.step;
  members["detect_s"] = fault.detect_s;
  events_.add("fault", fault.attempt, members);
}

void LaunchRecord::tell_action(const LaunchAction& action, int64_t from_step, int64_t steps_lost) {
  tell(fmt::format("action: {} ({} steps lost)", action.text, steps_lost));
  events_.add("action", action.attempt,
              {{"action", action.text}, {"step", from_step}, {"steps_lost", steps_lost}});
}

void LaunchRecord::tell_stop(const LaunchAction& action) {
  tell(goodput_.text());
  Ordered classes = Ordered::object();
  for (int i = 0; i < kNumTimeClasses; ++i)
    classes[name_of(TimeClass(i))] = goodput_.seconds(TimeClass(i));
  events_.add("stop", action.attempt,
              {{"code", action.exit_code},
               {"action", action.text},
               {"wall_s", goodput_.wall_s()},
               {"ettr", goodput_.ettr()},
               {"goodput", classes}});
}

void LaunchRecord::tell_move(const LaunchAction& action, double now) {
  named_s_ = now;
  tell_of_nodes(action.attempt, "saves and moves: " + action.text);
}

void LaunchRecord::tell_first_step(int attempt, int64_t step, double now) {
  Ordered members{{"step", step}};
  if (named_s_ > 0) {
    members["restart_s"] = now - named_s_;
    numbers_.restart_s += now - named_s_;
    ++numbers_.num_restarts;
  }
  events_.add("first_step", attempt, members);
}

double LaunchRecord::mean_restart_s() const {
  return numbers_.restart_s / double(std::max(1, numbers_.num_restarts));
}

void LaunchRecord::show(LaunchPhase phase, int attempt, int64_t step, double now) {
  constexpr double kEvery_s = 1;
  if (!server_ || now - shown_s_ < kEvery_s) return;
  shown_s_ = now;
  numbers_.phase = phase;
  numbers_.attempt = attempt;
  numbers_.step = step;
  server_->set_text(metrics_text(numbers_, goodput_));
}

}  // namespace ashlar::launch
