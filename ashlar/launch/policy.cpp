#include "ashlar/launch/policy.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/core/rng.h"
#include "ashlar/core/signals.h"

namespace ashlar::launch {
namespace {

// The starter ends its ranks within a second of the first death, or longer where they find no
// processor to end on; then it says what it saw.
constexpr double kSettle_s = 30;
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

Policy::Policy(const LaunchSpec& limits, int first_attempt, CommittedSteps steps,
               const PolicyState& state, bool spares)
    : limits_(limits), spares_(spares), attempt_(first_attempt - 1), state_(state) {
  note_progress(steps);
}

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
  if (event.kind == EventKind::kTooFewNodes && phase_ == LaunchPhase::kForm) {
    stop(kSpentExitCode, event.evidence.text, actions);
    return actions;
  }
  if (event.kind == EventKind::kTookOver) {
    take_over(event, now, actions);
    return actions;
  }
  if (event.attempt != attempt_ || phase_ == LaunchPhase::kForm) return actions;
  switch (event.kind) {
    case EventKind::kFirstStep:
      state_.from_step.reset();  // the ranks have gone back to it
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
      if (phase_ == LaunchPhase::kFence) decide(event, now, actions);
      break;
    case EventKind::kMove:
      move(event.evidence.text, now, actions);
      break;
    case EventKind::kTick:
    case EventKind::kAskedToStop:
    case EventKind::kTooFewNodes:
    case EventKind::kTookOver:
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
    drained_ = false;
    move_.clear();
    actions.push_back({.kind = ActionKind::kStart,
                       .attempt = attempt_,
                       .from_step = state_.from_step,
                       .rate_factor = state_.rate_factor});
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

// A fault may need the budget more: a move leaves half of it.
void Policy::move(const std::string& why, double now, Actions& actions) {
  const auto recent =
      std::ranges::count_if(state_.restarts, [&](double t) { return now - t < kHour_s; });
  if (phase_ != LaunchPhase::kRun || 2 * (recent + 1) > limits_.restarts_per_hour ||
      2 * (int64_t(state_.restarts.size()) + 1) > limits_.restarts)
    return;
  phase_ = LaunchPhase::kDrain;
  drained_ = true;
  move_ = why;
  actions.push_back({.kind = ActionKind::kTerminate, .attempt = attempt_, .text = why});
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
  if (cause_->fault == FaultClass::kNumeric && limits_.on_numeric != NumericAnswer::kStop)
    cause_->remedy = {.restart = true};
  const bool as_asked = drained_ && cause_->fault == FaultClass::kPreempted;
  if (!as_asked) {
    ++state_.num_faults;
    actions.push_back({.kind = ActionKind::kReport, .attempt = attempt_});
  }
  fence(now, actions);
}

void Policy::fence(double now, Actions& actions) {
  phase_ = LaunchPhase::kFence;
  since_ = now;
  actions.push_back({.kind = ActionKind::kFence, .attempt = attempt_});
}

// The attempt of the lost leader ended with it.
void Policy::take_over(const PolicyEvent& event, double now, Actions& actions) {
  cause_ = classify(std::span(&event.evidence, 1));
  ++state_.num_faults;
  actions.push_back({.kind = ActionKind::kReport, .attempt = attempt_});
  decide(event, now, actions);
}

void Policy::decide(const PolicyEvent& fenced, double now, Actions& actions) {
  if (!cause_) return stop(0, "", actions);
  if (asked_to_stop_)
    return stop(drained_ ? cause_->exit_code : int(ErrorKind::kPreempted), "", actions);
  if (!move_.empty() && cause_->fault == FaultClass::kPreempted)
    return start_elsewhere(fenced, now, actions);
  count(fenced.steps);
  if (cause_->fault == FaultClass::kNumeric && cause_->remedy.restart) answer_numeric(fenced);
  if (const std::optional<LaunchAction> stopping = reason_to_stop(now))
    return stop(stopping->exit_code, stopping->text, actions);
  if (cause_->fault == FaultClass::kNumeric && limits_.on_numeric == NumericAnswer::kLowerLr)
    state_.rate_factor *= limits_.lr_factor;
  const bool last_try = int64_t(state_.signatures.size()) == limits_.fruitless_attempts - 1;
  if (last_try && cause_->remedy.suspects_step && fenced.steps.second >= 0)
    state_.from_step = fenced.steps.second;
  const double jitter = 1.0 + kJitter * Rng(0, "launch.backoff").uniform(uint64_t(attempt_));
  const size_t in_a_row = std::max(size_t{1}, repeats_at_end(state_.faults));
  const double delay_s = limits_.backoff_s * backoff_factor(in_a_row - 1) * jitter;
  phase_ = LaunchPhase::kForm;
  start_at_ = now + delay_s;
  state_.restarts.push_back(now);
  actions.push_back({.kind = ActionKind::kDecide,
                     .attempt = attempt_,
                     .from_step = state_.from_step,
                     .delay_s = delay_s,
                     .text = plan_text(fenced, delay_s)});
}

void Policy::start_elsewhere(const PolicyEvent& fenced, double now, Actions& actions) {
  note_progress(fenced.steps);
  phase_ = LaunchPhase::kForm;
  start_at_ = now;
  state_.restarts.push_back(now);
  actions.push_back({.kind = ActionKind::kDecide,
                     .attempt = attempt_,
                     .text = fmt::format("{}: {}", plan_text(fenced, 0), move_)});
}

// The next attempt continues from before the first bad step.  If nothing tells which steps were
// bad, or none was committed before them, no restart mends the run.
void Policy::answer_numeric(const PolicyEvent& fenced) {
  const BadSteps bad = fenced.bad_steps.value_or(BadSteps{.problem = "they are not known"});
  const bool too_late = bad.before < 0 && fenced.steps.newest >= 0;
  if (bad.problem.empty() && !too_late) {
    if (bad.before < fenced.steps.newest) state_.from_step = bad.before;
    return;
  }
  cause_->remedy.restart = false;
  cause_->text +=
      "; " + (bad.problem.empty()
                  ? fmt::format("no step before step {}, the first bad one, is left", bad.first)
                  : bad.problem);
}

// "attempt 3 in 5 s, from step 40: step 60 is set aside".
std::string Policy::plan_text(const PolicyEvent& fenced, double delay_s) const {
  const int64_t newest = fenced.steps.newest;
  std::string text = fmt::format("attempt {}{}", attempt_ + 1,
                                 delay_s > 0 ? fmt::format(" in {:.0f} s", delay_s) : " now");
  if (state_.from_step && *state_.from_step < newest)
    text += fmt::format(", from step {}: step {} is set aside", *state_.from_step, newest);
  else
    text +=
        newest < 0 ? std::string(", from the beginning") : fmt::format(", from step {}", newest);
  if (cause_->fault != FaultClass::kNumeric) return text;
  if (limits_.on_numeric == NumericAnswer::kLowerLr)
    return text + fmt::format(", at {:g} of the learning rate", state_.rate_factor);
  return text +
         fmt::format(", without what the skipped steps up to step {} read", fenced.bad_steps->last);
}

// An attempt that committed a step beyond the furthest one made progress.
bool Policy::note_progress(CommittedSteps steps) {
  if (steps.newest <= state_.furthest) return false;
  state_.furthest = steps.newest;
  state_.signatures.clear();
  state_.faults.clear();
  return true;
}

void Policy::count(CommittedSteps steps) {
  if (note_progress(steps)) return;
  state_.signatures.push_back(cause_->signature());
  state_.faults.push_back(cause_->fault);
}

std::optional<LaunchAction> Policy::reason_to_stop(double now) const {
  const auto stopping = [&](int code, std::string text) {
    return LaunchAction{
        .kind = ActionKind::kStop, .attempt = attempt_, .exit_code = code, .text = std::move(text)};
  };
  const Remedy& remedy = cause_->remedy;
  const char* fault = name_of(cause_->fault);
  if (cause_->fault == FaultClass::kPreempted) return stopping(cause_->exit_code, "");
  const bool other_machine = spares_ && cause_->fault == FaultClass::kHardware;
  if (!remedy.restart && !other_machine)
    return stopping(cause_->exit_code,
                    fmt::format("{}: {}; a restart would not help", fault, cause_->text));
  if (remedy.most_in_a_row > 0 && int(repeats_at_end(state_.faults)) > remedy.most_in_a_row)
    return stopping(cause_->exit_code, fmt::format("{} again after {} restarts: {}", fault,
                                                   remedy.most_in_a_row, cause_->text));
  if (int64_t(state_.signatures.size()) >= limits_.fruitless_attempts)
    return stopping(cause_->exit_code, fmt::format("{} attempts in a row committed no new step "
                                                   "(launch.fruitless_attempts); {}",
                                                   state_.signatures.size(), repeated_ends()));
  const auto recent =
      std::ranges::count_if(state_.restarts, [&](double t) { return now - t < kHour_s; });
  if (recent >= limits_.restarts_per_hour)
    return stopping(kSpentExitCode,
                    fmt::format("{} restarts in an hour (launch.restarts_per_hour); the last cause "
                                "is {}: {}",
                                recent, fault, cause_->text));
  if (int64_t(state_.restarts.size()) >= limits_.restarts)
    return stopping(kSpentExitCode,
                    fmt::format("{} restarts (launch.restarts); the last cause is {}: {}",
                                state_.restarts.size(), fault, cause_->text));
  return std::nullopt;
}

std::string Policy::repeated_ends() const {
  const bool alike = repeats_at_end(state_.signatures) == state_.signatures.size();
  return fmt::format("{} {}: {}", alike ? "each ended with" : "the last one ended with",
                     name_of(cause_->fault), cause_->text);
}

void Policy::stop(int exit_code, std::string text, Actions& actions) {
  phase_ = LaunchPhase::kStop;
  const bool asked = exit_code == int(ErrorKind::kPreempted) || exit_code == kUnsavedExitCode;
  if (!asked) state_ = {.rate_factor = state_.rate_factor};
  actions.push_back({.kind = ActionKind::kStop,
                     .attempt = attempt_,
                     .exit_code = exit_code,
                     .text = std::move(text)});
}

}  // namespace ashlar::launch
