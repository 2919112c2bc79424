// The launcher's decisions: when an attempt starts, what ended it, and what happens then.
//
//   FORM --> START --first step--> RUN --ended with 0--> FENCE --> STOP (0)
//    ^         |                    |
//    |         +-------fault--------+--asked to stop--> DRAIN --ended--> FENCE --> STOP (27)
//    |                 v
//    |             CLASSIFY      waits until the processes have said how they ended
//    |                 v
//    +--restart----- FENCE       until no process of the attempt is left
//                      +--no remedy, or a limit is spent--> STOP (code of the cause, or 31)
//
// The policy does nothing itself: it maps an event at a time to actions, so that a test can drive
// it through any story.  Times are seconds of one clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/launch/cause.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::launch {

inline constexpr int kSpentExitCode = 31;  // docs/errors.md

enum class LaunchPhase : uint8_t { kForm, kStart, kRun, kClassify, kDrain, kFence, kStop };
const char* name_of(LaunchPhase phase);

// The run's committed steps; -1: there is none.
struct CommittedSteps {
  int64_t newest = -1, second = -1;
};

enum class EventKind : uint8_t {
  kTick,         // time has passed
  kAskedToStop,  // a signal came to the launcher
  kFirstStep,    // the attempt has done a step
  kSeen,         // something that may be the cause of its end
  kEnded,        // its first process ended: evidence is kExit or kSignal
  kFenced,       // none of its processes is left
};
struct PolicyEvent {
  EventKind kind = EventKind::kTick;
  int attempt = 0;  // of kFirstStep and later kinds; those of another attempt are passed over
  Evidence evidence = {};
  CommittedSteps steps = {};  // of kFenced
};

enum class ActionKind : uint8_t {
  kStart,      // attempt, from_step
  kTerminate,  // ask the ranks to save and stop
  kReport,     // the cause is known
  kFence,      // end every process of the attempt, then tell kFenced
  kDecide,     // text: what follows from the cause
  kStop,       // exit_code, text
};
struct LaunchAction {
  ActionKind kind = ActionKind::kStart;
  int attempt = 0;
  std::optional<int64_t> from_step = {};  // continue from this step and set newer ones aside
  double delay_s = 0;                     // of kDecide: until the next start
  int exit_code = 0;
  std::string text = {};
};

class Policy {
 public:
  // first_attempt: its number.  steps: those of earlier launches.
  Policy(const LaunchSpec& limits, int first_attempt, CommittedSteps steps);

  std::vector<LaunchAction> on(const PolicyEvent& event, double now);

  LaunchPhase phase() const { return phase_; }
  int attempt() const { return attempt_; }
  const Cause& cause() const { return *cause_; }  // after kReport
  int faults() const { return num_faults_; }

 private:
  using Actions = std::vector<LaunchAction>;
  void on_tick(double now, Actions& actions);
  void ask_to_stop(Actions& actions);
  void see(const Evidence& evidence, double now, Actions& actions);
  void judge(double now, Actions& actions);
  void fence(double now, Actions& actions);
  void decide(CommittedSteps steps, double now, Actions& actions);
  void count(CommittedSteps steps);
  std::optional<LaunchAction> reason_to_stop(double now) const;
  std::string repeated_ends() const;
  void stop(int exit_code, std::string text, Actions& actions);
  bool attempt_lives() const;

  LaunchSpec limits_;
  LaunchPhase phase_ = LaunchPhase::kForm;
  double since_ = 0, start_at_ = 0;
  int attempt_;
  bool asked_to_stop_ = false;
  bool drained_ = false;              // this attempt was asked to save and stop
  std::optional<int64_t> from_step_;  // of the next attempt
  std::vector<Evidence> evidence_;    // of this attempt's end
  std::optional<Cause> cause_;
  int num_faults_ = 0;
  std::vector<double> restarts_;         // their times
  int64_t furthest_;                     // the newest step that any attempt committed
  std::vector<std::string> signatures_;  // of the attempts since then
  std::vector<FaultClass> faults_;       // likewise
};

}  // namespace ashlar::launch
