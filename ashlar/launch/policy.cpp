#include "ashlar/launch/policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"

namespace ashlar::launch {
namespace {

// The starter ends its ranks within a second of the first death; then it says what it saw.
constexpr double kSettle_s = 10;
constexpr double kFencePatience_s = 60;
constexpr double kHour_s = 3600;
constexpr double kJitter = 0.2;

// Delays of the first, second, ... restart for one class without progress, as multiples of
// launch.backoff_s.
double backoff_factor(size_t in_a_row) {
  constexpr std::array kFactors{0.0, 1.0, 3.0, 12.0, 60.0};
  return kFactors[std::min(in_a_row, kFactors.size() - 1)];
}

// The last element, counted from the end as often as it repeats.
template <class T>
size_t repeats_at_end(const std::vector<T>& values) {
  size_t count = 0;
  while (count < values.size() && values[values.size() - 1 - count] == values.back()) ++count;
  return count;
}

}  // namespace

const char* name_of(LaunchPhase phase) {
  constexpr std::array kNames{"form", "start", "run", "classify", "drain", "fence", "stop"};
  return kNames[size_t(phase)];
}

Policy::Policy(const LaunchSpec& limits, int first_attempt, CommittedSteps steps)
    : limits_(limits), attempt_(first_attempt - 1), furthest_(steps.newest) {}

std::vector<LaunchAction> Policy::on(const PolicyEvent& event, double now) {
  Actions actions;
  if (phase_ == LaunchPhase::kStop) return actions;
  if (event.kind == EventKind::kTick) {
    on_tick(now, actions);
    return actions;
  }
  if (event.kind == EventKind::kAskedToStop) {
    ask_to_stop(actions);
    return actions;
  }
  if (event.attempt != attempt_ || phase_ == LaunchPhase::kForm) return actions;
  switch (event.kind) {
    case EventKind::kFirstStep:
      if (phase_ == LaunchPhase::kStart) phase_ = LaunchPhase::kRun;
      break;
    case EventKind::kSeen:
    case EventKind::kEnded:
      if (!attempt_lives()) break;
      if (event.kind == EventKind::kEnded && event.evidence.kind == EvidenceKind::kExit &&
          event.evidence.value == 0)
        fence(now, actions);  // the run is done
      else
        see(event.evidence, now, actions);
      break;
    case EventKind::kFenced:
      if (phase_ == LaunchPhase::kFence) decide(event.steps, now, actions);
      break;
    case EventKind::kTick:
    case EventKind::kAskedToStop:
      break;
  }
  return actions;
}

bool Policy::attempt_lives() const {
  return phase_ == LaunchPhase::kStart || phase_ == LaunchPhase::kRun ||
         phase_ == LaunchPhase::kClassify || phase_ == LaunchPhase::kDrain;
}

void Policy::on_tick(double now, Actions& actions) {
  if (phase_ == LaunchPhase::kForm && now >= start_at_) {
    phase_ = LaunchPhase::kStart;
    ++attempt_;
    evidence_.clear();
    cause_.reset();
    actions.push_back({.kind = ActionKind::kStart,
                       .attempt = attempt_,
                       .from_step = std::exchange(from_step_, std::nullopt)});
  } else if (phase_ == LaunchPhase::kClassify && now - since_ >= kSettle_s) {
    judge(now, actions);
  } else if (phase_ == LaunchPhase::kFence && now - since_ >= kFencePatience_s) {
    stop(int(ErrorKind::kDevice),
         fmt::format("processes of attempt {} did not end {:.0f} s after SIGKILL, and none may "
                     "start beside them; see what they wait for (state D in ps)",
                     attempt_, kFencePatience_s),
         actions);
  }
}

void Policy::ask_to_stop(Actions& actions) {
  if (std::exchange(asked_to_stop_, true)) return;
  if (phase_ == LaunchPhase::kForm) {
    stop(int(ErrorKind::kPreempted), "", actions);
  } else if (phase_ == LaunchPhase::kStart || phase_ == LaunchPhase::kRun) {
    phase_ = LaunchPhase::kDrain;
    drained_ = true;
    actions.push_back({.kind = ActionKind::kTerminate, .attempt = attempt_});
  }
}

// A process that is gone, or was killed for its memory, brings the whole attempt to an end, and the
// end says more.
void Policy::see(const Evidence& evidence, double now, Actions& actions) {
  evidence_.push_back(evidence);
  const bool end_follows =
      evidence.kind == EvidenceKind::kGone || evidence.kind == EvidenceKind::kOutOfMemory;
  if (!end_follows) return judge(now, actions);
  if (phase_ == LaunchPhase::kClassify) return;
  phase_ = LaunchPhase::kClassify;
  since_ = now;
}

void Policy::judge(double now, Actions& actions) {
  cause_ = classify(evidence_);
  const bool as_asked = drained_ && cause_->fault == FaultClass::kPreempted;
  if (!as_asked) {
    ++num_faults_;
    actions.push_back({.kind = ActionKind::kReport, .attempt = attempt_});
  }
  fence(now, actions);
}

void Policy::fence(double now, Actions& actions) {
  phase_ = LaunchPhase::kFence;
  since_ = now;
  actions.push_back({.kind = ActionKind::kFence, .attempt = attempt_});
}

void Policy::decide(CommittedSteps steps, double now, Actions& actions) {
  if (!cause_) return stop(0, "", actions);
  if (asked_to_stop_)
    return stop(drained_ ? cause_->exit_code : int(ErrorKind::kPreempted), "", actions);
  count(steps);
  if (std::optional<LaunchAction> stopping = reason_to_stop(now)) {
    phase_ = LaunchPhase::kStop;
    actions.push_back(*stopping);
    return;
  }
  const bool last_try = int64_t(signatures_.size()) == limits_.fruitless_attempts - 1;
  if (last_try && cause_->remedy.suspects_step && steps.second >= 0) from_step_ = steps.second;
  const double jitter = 1.0 + kJitter * Rng(0, "launch.backoff").uniform(uint64_t(attempt_));
  const size_t in_a_row = std::max(size_t{1}, repeats_at_end(faults_));
  const double delay_s = limits_.backoff_s * backoff_factor(in_a_row - 1) * jitter;
  phase_ = LaunchPhase::kForm;
  start_at_ = now + delay_s;
  restarts_.push_back(now);
  std::string text = fmt::format("attempt {}{}", attempt_ + 1,
                                 delay_s > 0 ? fmt::format(" in {:.0f} s", delay_s) : " now");
  if (from_step_)
    text += fmt::format(", from step {}: step {} is set aside", *from_step_, steps.newest);
  else
    text += steps.newest < 0 ? std::string(", from the beginning")
                             : fmt::format(", from step {}", steps.newest);
  actions.push_back(
      {.kind = ActionKind::kDecide, .attempt = attempt_, .delay_s = delay_s, .text = text});
}

// An attempt that committed a step beyond the furthest one made progress.
void Policy::count(CommittedSteps steps) {
  if (steps.newest > furthest_) {
    furthest_ = steps.newest;
    signatures_.clear();
    faults_.clear();
    return;
  }
  signatures_.push_back(cause_->signature());
  faults_.push_back(cause_->fault);
}

std::optional<LaunchAction> Policy::reason_to_stop(double now) const {
  const auto stopping = [&](int code, std::string text) {
    return LaunchAction{
        .kind = ActionKind::kStop, .attempt = attempt_, .exit_code = code, .text = std::move(text)};
  };
  const Remedy& remedy = cause_->remedy;
  const char* fault = name_of(cause_->fault);
  if (cause_->fault == FaultClass::kPreempted) return stopping(cause_->exit_code, "");
  if (!remedy.restart)
    return stopping(cause_->exit_code,
                    fmt::format("{}: {}; no restart mends it", fault, cause_->text));
  if (remedy.most_in_a_row > 0 && int(repeats_at_end(faults_)) > remedy.most_in_a_row)
    return stopping(cause_->exit_code, fmt::format("{} again after {} of its restarts: {}", fault,
                                                   remedy.most_in_a_row, cause_->text));
  if (int64_t(signatures_.size()) >= limits_.fruitless_attempts)
    return stopping(cause_->exit_code, fmt::format("{} attempts in a row committed no new step "
                                                   "(launch.fruitless_attempts); {}",
                                                   signatures_.size(), repeated_ends()));
  const auto recent = std::ranges::count_if(restarts_, [&](double t) { return now - t < kHour_s; });
  if (recent >= limits_.restarts_per_hour)
    return stopping(kSpentExitCode,
                    fmt::format("{} restarts in an hour (launch.restarts_per_hour); the last cause "
                                "is {}: {}",
                                recent, fault, cause_->text));
  if (int64_t(restarts_.size()) >= limits_.restarts)
    return stopping(kSpentExitCode,
                    fmt::format("{} restarts (launch.restarts); the last cause is {}: {}",
                                restarts_.size(), fault, cause_->text));
  return std::nullopt;
}

std::string Policy::repeated_ends() const {
  const bool alike = repeats_at_end(signatures_) == signatures_.size();
  return fmt::format("{} {}: {}", alike ? "each ended with" : "the last one ended with",
                     name_of(cause_->fault), cause_->text);
}

void Policy::stop(int exit_code, std::string text, Actions& actions) {
  phase_ = LaunchPhase::kStop;
  actions.push_back({.kind = ActionKind::kStop,
                     .attempt = attempt_,
                     .exit_code = exit_code,
                     .text = std::move(text)});
}

}  // namespace ashlar::launch
