// The launcher's decisions: when an attempt starts, what ended it, and what happens then.
//
//   FORM --> START --first step--> RUN --ended with 0--> FENCE --> STOP (0)
//    ^         |                    |
//    |         +-------fault--------+--asked to stop--> DRAIN --ended--> FENCE --> STOP (27)
//    |                 v
//    |             CLASSIFY      waits until the processes have said how they ended
//    |                 v
//    +--restart----- FENCE       until no process of the attempt is left
//    +--move--DRAIN, FENCE       the attempt saves, and the next one runs on other nodes
//                      +--no remedy, or a limit is spent--> STOP (code of the cause, or 31)
//
// A launcher that was killed, or asked to stop, leaves its counts to the next one; one that gave up
// does not, since a person starts the next.
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

// The steps that the health check skipped before it gave up.
struct BadSteps {
  int64_t first = 0, last = 0;
  int64_t before = -1;       // the newest committed step before the first; -1: there is none
  std::string problem = {};  // the reason why they are not known; "": they are
};

// The part of a Policy that a launcher leaves to the next one of the same run.
struct PolicyState {
  int num_faults = 0;
  std::vector<double> restarts = {};         // their times
  int64_t furthest = -1;                     // the newest step that any attempt committed
  std::vector<std::string> signatures = {};  // of the attempts since then
  std::vector<FaultClass> faults = {};       // likewise
  std::optional<int64_t> from_step = {};     // of the next attempt
  double rate_factor = 1;                    // of the recipe's learning rate
  friend bool operator==(const PolicyState&, const PolicyState&) = default;
};

enum class EventKind : uint8_t {
  kTick,         // time has passed
  kAskedToStop,  // a signal came to the launcher
  kFirstStep,    // the attempt has done a step
  kSeen,         // something that may be the cause of its end
  kEnded,        // its first process ended: evidence is kExit, kSignal or kNodeLost
  kFenced,       // none of its processes is left
  kTooFewNodes,  // evidence: what a start has waited for in vain
  kMove,         // the run would be faster on other nodes; evidence: why
  kTookOver,     // before the first tick: evidence of the loss of the leader before this one
};
struct PolicyEvent {
  EventKind kind = EventKind::kTick;
  int attempt = 0;  // of kFirstStep and later kinds; those of another attempt are passed over
  Evidence evidence = {};
  CommittedSteps steps = {};               // of kFenced and kTookOver
  std::optional<BadSteps> bad_steps = {};  // of kFenced after a numeric fault
};

enum class ActionKind : uint8_t {
  kStart,      // attempt, from_step, rate_factor
  kTerminate,  // ask the ranks to save and stop; text: why, if the run goes on elsewhere
  kReport,     // the cause is known
  kFence,      // end every process of the attempt, then tell kFenced
  kDecide,     // text: what follows from the cause
  kStop,       // exit_code, text
};
struct LaunchAction {
  ActionKind kind = ActionKind::kStart;
  int attempt = 0;
  std::optional<int64_t> from_step = {};  // continue from this step and set newer ones aside
  double rate_factor = 1;                 // train at this times the recipe's learning rate
  double delay_s = 0;                     // of kDecide: until the next start
  int exit_code = 0;
  std::string text = {};
};

class Policy {
 public:
  // first_attempt: its number.  steps: those of earlier launches.  state: what an earlier launcher
  // left; it counts on.  spares: a restart may leave a machine out.
  Policy(const LaunchSpec& limits, int first_attempt, CommittedSteps steps,
         const PolicyState& state = {}, bool spares = false);

  std::vector<LaunchAction> on(const PolicyEvent& event, double now);

  LaunchPhase phase() const { return phase_; }
  int attempt() const { return attempt_; }
  bool has_cause() const { return cause_.has_value(); }
  const Cause& cause() const { return *cause_; }  // after kReport
  int faults() const { return state_.num_faults; }
  const PolicyState& state() const { return state_; }

 private:
  using Actions = std::vector<LaunchAction>;
  void on_tick(double now, Actions& actions);
  void ask_to_stop(Actions& actions);
  void move(const std::string& why, double now, Actions& actions);
  void start_elsewhere(const PolicyEvent& fenced, double now, Actions& actions);
  void see(const Evidence& evidence, double now, Actions& actions);
  void judge(double now, Actions& actions);
  void fence(double now, Actions& actions);
  void take_over(const PolicyEvent& event, double now, Actions& actions);
  void decide(const PolicyEvent& fenced, double now, Actions& actions);
  void answer_numeric(const PolicyEvent& fenced);
  bool note_progress(CommittedSteps steps);
  void count(CommittedSteps steps);
  std::optional<LaunchAction> reason_to_stop(double now) const;
  std::string plan_text(const PolicyEvent& fenced, double delay_s) const;
  std::string repeated_ends() const;
  void stop(int exit_code, std::string text, Actions& actions);
  bool attempt_lives() const;

  LaunchSpec limits_;
  bool spares_;
  LaunchPhase phase_ = LaunchPhase::kForm;
  double since_ = 0, start_at_ = 0;
  int attempt_;
  bool asked_to_stop_ = false;
  bool drained_ = false;            // this attempt was asked to save and stop
  std::string move_;                // why it was, if the run goes on elsewhere
  std::vector<Evidence> evidence_;  // of this attempt's end
  std::optional<Cause> cause_;
  PolicyState state_;
};

}  // namespace ashlar::launch
