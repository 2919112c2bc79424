#include "ashlar/launch/launcher.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "ashlar/core/agent.h"
#include "ashlar/core/signals.h"
#include "ashlar/launch/advice.h"
#include "ashlar/launch/launch_files.h"
#include "ashlar/launch/launch_record.h"
#include "ashlar/launch/moments.h"
#include "ashlar/launch/run_moves.h"
#include "ashlar/launch/watch.h"

namespace ashlar::launch {
namespace {

constexpr int kStartFailed = 71;  // EX_OSERR, of class unknown
// The ends of processes wake the launcher at once; these are for all else.
constexpr double kWaitEvery_s = 0.02, kWatchEvery_s = 0.2, kMetricsEvery_s = 1;

std::string made_directory(FileSystem& files, const std::string& path) {
  files.make_directories(path);
  return path;
}

class Launcher {
 public:
  Launcher(const LaunchPlan& plan, FileSystem& files, Log& log);
  LaunchResult run();

 private:
  void end_older_ranks();
  void take_over();
  void resign();
  void look(double now);
  bool may_start(double now);
  void take(const Attempt::News& news, double now);
  void see_memory_kill(const Evidence& end, double now);
  void watch(double now);
  void try_fence(double now);
  void end_fence(double now);
  CommittedSteps steps_now();
  std::optional<BadSteps> bad_steps();
  void list_bad_steps();
  std::string state_path() const { return join(directory_, "state.json"); }
  void keep_state();
  void send(const PolicyEvent& event, double now);
  void act(const LaunchAction& action, double now);
  void start(const LaunchAction& action, double now);
  void start_on_nodes(const AttemptCommand& command, int attempt);
  void report(double now);
  void decide(const LaunchAction& action);
  void stop(const LaunchAction& action);
  TimeClass class_now() const;
  void see_first_step(double now);
  void advise(double now);
  RunMoves::Progress progress() const;
  void move(const NodePlacement::Move& move, double now);
  void tell_of_nodes();

  const LaunchPlan& plan_;
  FileSystem& files_;
  Log& log_;
  const StopSignals signals_;
  const std::string directory_;
  const std::unique_ptr<LaunchLock> lock_;  // null: several machines have an epoch in its place
  RankSocket socket_;
  LaunchRecord record_;
  CommittedSteps steps_;
  Policy policy_;
  Watch watch_;
  MetricsTail metrics_;
  StallWatch stalls_;
  ClockWatch clocks_;
  SlowRanks slow_ranks_;
  std::unique_ptr<Attempt> attempt_;
  Watch::Sight sight_;                // the last of this attempt
  std::vector<HarmfulStep> harmful_;  // for which the health check gave up
  int64_t furthest_ = 0;              // step that an earlier attempt has done
  int64_t reached_ = 0;               // step that this one has done
  int64_t kills_ = 0;                 // for lack of memory, before this attempt
  double trouble_s_ = 0;              // when this attempt's end began to show; 0: it has not
  double watched_s_ = 0, read_metrics_s_ = 0;
  std::optional<RunMoves> moves_;  // on several machines
  bool asked_ = false, fencing_ = false;
  std::optional<double> waits_since_;  // for nodes
  std::string told_missing_;           // what it said that it waits for
  LaunchResult result_;
};

Launcher::Launcher(const LaunchPlan& plan, FileSystem& files, Log& log)
    : plan_(plan),
      files_(files),
      log_(log),
      directory_(made_directory(files, join(plan.run_directory, "launch"))),
      lock_(plan.fleet ? nullptr : std::make_unique<LaunchLock>(join(directory_, "lock"))),
      record_({directory_, plan.fleet ? plan.fleet->epoch() : 1, plan.metrics}, plan.limits.notify,
              files, log),
      steps_(steps_in(files, plan.checkpoints)),
      policy_(plan.limits, next_attempt(files, join(directory_, "ranks")), steps_,
              read_policy_state(files, state_path(), unix_now_s() - now_s()),
              plan.fleet != nullptr),
      watch_(plan.run_directory, plan.limits.hang_s, log, plan.step_s),
      metrics_(files, join(plan.run_directory, "metrics.jsonl")) {
  if (plan.fleet) moves_.emplace(*plan.fleet);
}

LaunchResult Launcher::run() {
  if (plan_.fleet)
    take_over();
  else
    end_older_ranks();
  while (policy_.phase() != LaunchPhase::kStop && !result_.resigned) look(now_s());
  attempt_.reset();
  if (plan_.fleet) return result_;
  try {
    remove_pulse(plan_.run_directory);
  } catch (const Error& error) {
    log_.warn("the ranks' pages in /dev/shm were not removed: {}", error.what());
  }
  return result_;
}

// Waits for the ranks of a launcher that was killed, which save and end, and then kills them: they
// hold the lease of the checkpoints.
void Launcher::end_older_ranks() {
  constexpr double kPatience_s = 60;
  const double begin = now_s();
  for (bool told = false; !StopSignals::requested();) {
    const std::vector<int64_t> older = launched_processes(plan_.run_directory);
    if (older.empty()) return;
    if (!std::exchange(told, true))
      record_.tell(fmt::format("waiting for process {} of an earlier launch, which may be saving",
                               older.front()));
    if (now_s() - begin > kPatience_s)
      for (const int64_t pid : older) kill(pid_t(pid), SIGKILL);
    std::this_thread::sleep_for(std::chrono::duration<double>(kWatchEvery_s));
  }
}

// The loss of a leader ends its attempt: every change of the lead is another restart.
void Launcher::take_over() {
  const std::string lost = plan_.fleet->lost_leader();
  if (lost.empty()) return;
  record_.begin(policy_.attempt());  // which was lost
  try {
    reached_ = last_step_done(files_, join(plan_.run_directory, "metrics.jsonl"));
  } catch (const Error& error) {
    log_.warn("cannot read which steps the lost leader's attempt did: {}", error.what());
  }
  send({.kind = EventKind::kTookOver,
        .evidence = {EvidenceKind::kNodeLost, -1, 0, lost},
        .steps = steps_},
       now_s());
}

void Launcher::resign() {
  record_.tell("another launcher leads the run from here on");
  result_.resigned = true;
}

void Launcher::look(double now) {
  record_.charge(class_now(), now);
  record_.show(policy_.phase(), policy_.attempt(), std::max(furthest_, reached_), now);
  if (plan_.fleet && !plan_.fleet->lead(now)) {
    return resign();
  }
  tell_of_nodes();
  const bool signalled = StopSignals::requested();
  if ((signalled || (plan_.fleet && plan_.fleet->asked_to_stop())) &&
      !std::exchange(asked_, true)) {
    record_.tell(fmt::format("{}: asking the ranks to save and stop",
                             signalled ? StopSignals::name() : "a signal"));
    send({EventKind::kAskedToStop}, now);
  }
  if (!attempt_) {
    if (may_start(now)) send({EventKind::kTick}, now);
    record_.flush();
    if (!attempt_ && policy_.phase() != LaunchPhase::kStop)
      std::this_thread::sleep_for(std::chrono::duration<double>(kWaitEvery_s));
    return;
  }
  take(attempt_->wait(fencing_ ? kWaitEvery_s : kWatchEvery_s), now_s());
  if (fencing_)
    try_fence(now_s());
  else if (now_s() - watched_s_ >= kWatchEvery_s && policy_.phase() != LaunchPhase::kClassify)
    watch(now_s());
  record_.flush();
  if (attempt_) send({EventKind::kTick}, now_s());  // a start waits for its nodes: may_start
}

// Whether there are the nodes for an attempt.  Ends the run if they do not come for too long.
bool Launcher::may_start(double now) {
  const std::string missing = plan_.fleet ? plan_.fleet->missing(now) : "";
  if (missing.empty()) {
    waits_since_.reset();
    told_missing_.clear();
    return true;
  }
  if (!waits_since_) waits_since_ = now;
  if (std::exchange(told_missing_, missing) != missing) record_.tell("waits: " + missing);
  if (now - *waits_since_ < plan_.limits.wait_nodes_s) return false;
  send({.kind = EventKind::kTooFewNodes,
        .evidence = {.text = fmt::format("{} after {:.0f} s (launch.wait_nodes_s)", missing,
                                         plan_.limits.wait_nodes_s)}},
       now);
  return false;
}

// Passes on the news of the processes.  A kill for lack of memory comes before the end it caused.
void Launcher::take(const Attempt::News& news, double now) {
  for (const OutputLine& line : news.lines) record_.add(line, attempt_->host_of(line.rank));
  if (!news.lines.empty()) watch_.hear(now);
  if ((!news.gone.empty() || news.ended) && trouble_s_ == 0) trouble_s_ = now;
  const int attempt = policy_.attempt();
  if (!news.gone.empty()) send({EventKind::kSeen, attempt, news.gone.front()}, now);
  if (!news.ended) return;
  see_memory_kill(*news.ended, now);
  send({EventKind::kEnded, attempt, *news.ended}, now);
}

void Launcher::see_memory_kill(const Evidence& end, double now) {
  if (end.kind != EvidenceKind::kSignal || attempt_->memory_kills() <= kills_) return;
  send({EventKind::kSeen,
        policy_.attempt(),
        {EvidenceKind::kOutOfMemory, end.rank, 0,
         "the kernel killed a process of the control group for its memory"}},
       now);
}

void Launcher::watch(double now) {
  watched_s_ = now;
  sight_ = attempt_->look(watch_, now);
  for (const auto& [rank, page] : sight_.pages) reached_ = std::max(reached_, page.step);
  see_first_step(now);
  advise(now);
  if (moves_ && policy_.phase() == LaunchPhase::kRun)
    if (const auto more_nodes = moves_->grow(progress(), now)) move(*more_nodes, now);
  if (!sight_.fault) return;
  trouble_s_ = now - sight_.silence_s;
  see_memory_kill(*sight_.fault, now);
  send({EventKind::kSeen, policy_.attempt(), *sight_.fault}, now);
}

void Launcher::see_first_step(double now) {
  const bool stepped = std::ranges::any_of(
      sight_.pages, [](const auto& page) { return page.second.steps_here > 0; });
  if (policy_.phase() != LaunchPhase::kStart || !stepped) return;
  record_.tell_first_step(policy_.attempt(), reached_, now);
  if (moves_) moves_->begin(reached_, now);
  send({EventKind::kFirstStep, policy_.attempt()}, now);
}

// Reports what slows the run down, and changes nothing.
void Launcher::advise(double now) {
  if (policy_.phase() != LaunchPhase::kRun) return;
  std::vector<Advice> all = slow_ranks_.add(sight_.pages);
  if (auto jump = clocks_.add(now_s(), unix_now_s())) all.push_back(std::move(*jump));
  if (now - read_metrics_s_ >= kMetricsEvery_s) {
    read_metrics_s_ = now;
    for (const Json& row : metrics_.take()) {
      for (Advice& advice : stalls_.add(row)) all.push_back(std::move(advice));
      if (row.contains("tokens") && !row.contains("event"))
        if (const auto tokens = integer_of(row["tokens"])) record_.set_tokens(*tokens);
    }
  }
  for (const Advice& advice : all) {
    record_.tell_advice(policy_.attempt(), advice);
    if (!moves_ || advice.share <= 0) continue;
    if (const auto away = moves_->leave(advice.rank, advice.share, progress(), now))
      move(*away, now);
  }
}

RunMoves::Progress Launcher::progress() const {
  const auto page = sight_.pages.find(0);
  return {.step = reached_,
          .num_steps = page == sight_.pages.end() ? 0 : page->second.num_steps,
          .restart_s = record_.mean_restart_s()};
}

void Launcher::move(const NodePlacement::Move& move, double now) {
  send({EventKind::kMove,
        policy_.attempt(),
        {.text = fmt::format("{}, by which the rest of the run takes {:.0f} % less time", move.text,
                             100 * move.share)}},
       now);
  if (policy_.phase() == LaunchPhase::kDrain) plan_.fleet->leave_out(move);
}

void Launcher::tell_of_nodes() {
  if (!plan_.fleet) return;
  for (const std::string& line : plan_.fleet->take_notes())
    record_.tell_of_nodes(policy_.attempt(), line);
}

void Launcher::try_fence(double now) {
  if (!attempt_->fence()) return;
  for (const OutputLine& line : attempt_->wait(0).lines)
    record_.add(line, attempt_->host_of(line.rank));
  attempt_.reset();
  end_fence(now);
}

void Launcher::end_fence(double now) {
  fencing_ = false;
  record_.add_event("fence", policy_.attempt());
  const CommittedSteps steps = steps_now();
  send({.kind = EventKind::kFenced,
        .attempt = policy_.attempt(),
        .steps = steps,
        .bad_steps = bad_steps()},
       now);
}

// The steps for which the health check gave up.
std::optional<BadSteps> Launcher::bad_steps() {
  harmful_.clear();
  const bool numeric = policy_.has_cause() && policy_.cause().fault == FaultClass::kNumeric;
  if (!numeric || plan_.limits.on_numeric == NumericAnswer::kStop) return std::nullopt;
  try {
    harmful_ = skipped_steps(files_, join(plan_.run_directory, "metrics.jsonl"));
    if (harmful_.empty())
      return BadSteps{.problem = "metrics.jsonl names no step that was skipped"};
    // Steps that are listed spend no budget in the next attempt; others do.
    const bool listed = plan_.limits.on_numeric == NumericAnswer::kSkipSamples;
    const int64_t first = listed ? begin_of_last_trouble(harmful_) : harmful_.front().step;
    return BadSteps{first, harmful_.back().step,
                    newest_step_before(files_, plan_.checkpoints, first)};
  } catch (const Error& error) {
    return BadSteps{.problem = error.what()};
  }
}

// Lists the bad steps for the next attempt, if it is to pass them.
void Launcher::list_bad_steps() {
  if (harmful_.empty() || plan_.limits.on_numeric != NumericAnswer::kSkipSamples) return;
  try {
    add_to_skip_list(files_, plan_.run_directory, harmful_);
  } catch (const Error& error) {
    log_.warn("the skipped steps were not added to skips.jsonl: {}", error.what());
  }
}

// Steps as of now, or of the last look if the directory cannot be read.
CommittedSteps Launcher::steps_now() {
  try {
    steps_ = steps_in(files_, plan_.checkpoints);
  } catch (const Error& error) {
    log_.warn("cannot read which checkpoints the run has: {}", error.what());
  }
  return steps_;
}

void Launcher::send(const PolicyEvent& event, double now) {
  const std::vector<LaunchAction> actions = policy_.on(event, now);
  // Not before a fence: the disk of the run may hang with its ranks.
  const auto lasts = [](const LaunchAction& action) {
    return action.kind == ActionKind::kStart || action.kind == ActionKind::kDecide ||
           action.kind == ActionKind::kStop;
  };
  if (event.kind == EventKind::kFirstStep || std::ranges::any_of(actions, lasts)) {
    if (plan_.fleet && !plan_.fleet->is_newest()) return resign();
    keep_state();
  }
  for (const LaunchAction& action : actions) act(action, now);
}

// Keeps the counts for the next launcher, should this one be killed.
void Launcher::keep_state() {
  try {
    write_policy_state(files_, state_path(), policy_.state(), unix_now_s() - now_s());
  } catch (const Error& error) {
    log_.warn("the launcher's counts were not saved: {}", error.what());
  }
}

void Launcher::act(const LaunchAction& action, double now) {
  switch (action.kind) {
    case ActionKind::kStart:
      return start(action, now);
    case ActionKind::kTerminate:
      if (action.text.empty())
        record_.add_event("preempt", action.attempt, {{"signal", StopSignals::name()}});
      else
        record_.tell_move(action, now);
      return attempt_->terminate();
    case ActionKind::kReport:
      return report(now);
    case ActionKind::kFence:
      fencing_ = true;
      return;
    case ActionKind::kDecide:
      return decide(action);
    case ActionKind::kStop:
      return stop(action);
  }
}

void Launcher::start(const LaunchAction& action, double now) {
  AttemptCommand command = plan_.command(action.from_step, action.rate_factor);
  if (!plan_.fleet)
    command.variables.push_back(fmt::format("{}={}", kAgentVariable, socket_.name()));
  command.variables.push_back(fmt::format("{}={}", kAttemptVariable, action.attempt));
  record_.begin(action.attempt);
  furthest_ = std::max(furthest_, reached_);
  reached_ = 0;
  trouble_s_ = 0;
  sight_ = {};
  watch_.begin(now);
  metrics_.skip();
  slow_ranks_ = {};
  Ordered members = Ordered::object();
  if (action.from_step) members["step"] = *action.from_step;
  record_.add_event("start", action.attempt, members);
  try {
    if (plan_.fleet)
      start_on_nodes(command, action.attempt);
    else
      attempt_ = std::make_unique<LocalAttempt>(command, socket_);
    kills_ = attempt_->memory_kills();
  } catch (const Error& error) {  // no process is left: the machine may lack them for a while
    send({EventKind::kEnded, action.attempt, {EvidenceKind::kExit, -1, kStartFailed, error.what()}},
         now);
    end_fence(now);
  }
}

void Launcher::start_on_nodes(const AttemptCommand& command, int attempt) {
  attempt_ = plan_.fleet->start(command, attempt, socket_);
  const std::optional<LaunchLayout>& fewer = plan_.fleet->fewer_nodes();
  if (!fewer) return;
  record_.tell_of_nodes(
      attempt, fmt::format("shrunk to {} nodes: {}; sums of other ranks differ in their last bits",
                           fewer->nodes, fewer->mesh));
}

void Launcher::report(double now) {
  const Cause& cause = policy_.cause();
  const auto page = sight_.pages.find(cause.rank);
  record_.tell_fault({.cause = cause,
                      .number = policy_.faults(),
                      .attempt = policy_.attempt(),
                      .step = reached_,
                      .page = page == sight_.pages.end() ? nullptr : &page->second,
                      .detect_s = trouble_s_ > 0 ? std::max(0.0, now - trouble_s_) : 0.0},
                     now);
  if (plan_.fleet) plan_.fleet->judge(cause, now);
  tell_of_nodes();
}

void Launcher::decide(const LaunchAction& action) {
  list_bad_steps();
  const int64_t from = action.from_step.value_or(std::max<int64_t>(0, steps_.newest));
  record_.tell_action(action, from, std::max<int64_t>(0, reached_ - from));
}

void Launcher::stop(const LaunchAction& action) {
  result_ = {action.exit_code, action.text};
  if (!action.text.empty())
    record_.tell(fmt::format("action: stop with code {}", action.exit_code));
  record_.charge(class_now(), now_s());
  record_.tell_stop(action);
  if (plan_.fleet) plan_.fleet->end(action.exit_code);
}

// The class of the time that passes now.
TimeClass Launcher::class_now() const {
  const LaunchPhase phase = policy_.phase();
  if (asked_) return TimeClass::kStopped;
  if (phase == LaunchPhase::kForm || phase == LaunchPhase::kFence || phase == LaunchPhase::kStop)
    return TimeClass::kFencePlace;
  if (phase == LaunchPhase::kClassify) return TimeClass::kDetect;
  const auto leader = sight_.pages.find(0);
  if (leader == sight_.pages.end()) return TimeClass::kStartLoad;
  const TimeClass time = class_of(leader->second, furthest_);
  const bool fewer = plan_.fleet && plan_.fleet->fewer_nodes();
  return fewer && time == TimeClass::kUseful ? TimeClass::kDegraded : time;
}

}  // namespace

LaunchResult run_launch(const LaunchPlan& plan, FileSystem& files, Log& log) {
  return Launcher(plan, files, log).run();
}

}  // namespace ashlar::launch
