#include "ashlar/launch/policy.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <random>

namespace ashlar::launch {
namespace {

// The world around a policy: it starts, ends and fences attempts as the policy asks.
struct Story {
  explicit Story(LaunchSpec limits, CommittedSteps from = {}, const PolicyState& state = {})
      : policy(limits, 1, from, state), steps(from) {
    tick(0);
  }

  void send(PolicyEvent event) {
    event.steps = steps;
    event.bad_steps = bad_steps;
    for (const LaunchAction& action : policy.on(event, now)) {
      actions.push_back(action);
      if (action.kind == ActionKind::kStart) {
        EXPECT_FALSE(lives) << "a start beside an attempt that is not fenced";
        lives = true;
        starts.push_back(now);
        EXPECT_EQ(action.attempt, int(starts.size()));
      }
      if (action.kind == ActionKind::kFence) must_fence = true;
    }
  }
  void tick(double seconds) {
    now += seconds;
    send({EventKind::kTick});
  }
  void ask_to_stop() { send({EventKind::kAskedToStop}); }
  void first_step() { send({EventKind::kFirstStep, policy.attempt()}); }
  void see(EvidenceKind kind) {
    send({EventKind::kSeen, policy.attempt(), {kind, 1, 0, "what was seen"}});
  }
  void end(EvidenceKind kind, int value, std::string text = "") {
    send({EventKind::kEnded, policy.attempt(), {kind, 0, value, std::move(text)}});
  }
  void fenced() {
    must_fence = lives = false;
    send({EventKind::kFenced, policy.attempt()});
  }
  // An attempt that ends so, up to the next decision.
  void fail(EvidenceKind kind, int value, std::string text = "") {
    end(kind, value, std::move(text));
    fenced();
  }
  const LaunchAction& last() const { return actions.back(); }

  Policy policy;
  CommittedSteps steps;
  std::optional<BadSteps> bad_steps;
  std::vector<LaunchAction> actions;
  std::vector<double> starts;
  double now = 0;
  bool lives = false, must_fence = false;
};

constexpr LaunchSpec kLaunchSpec{
    .restarts_per_hour = 10, .restarts = 200, .fruitless_attempts = 4, .backoff_s = 5};

TEST(Policy, EndsWithTheRun) {
  Story story(kLaunchSpec);
  EXPECT_EQ(story.last().kind, ActionKind::kStart);
  EXPECT_EQ(story.last().attempt, 1);
  story.first_step();
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kRun);
  story.end(EvidenceKind::kExit, 0);
  EXPECT_EQ(story.last().kind, ActionKind::kFence);
  story.fenced();
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, 0);
}

TEST(Policy, MovesAtASave) {
  Story story(kLaunchSpec);
  story.send({EventKind::kMove, 1, {.text = "3 of 3 nodes are there"}});
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kStart) << "not before its first step";
  story.first_step();
  story.send({EventKind::kMove, 1, {.text = "3 of 3 nodes are there"}});
  EXPECT_EQ(story.last().kind, ActionKind::kTerminate);
  EXPECT_EQ(story.last().text, "3 of 3 nodes are there");
  story.steps = {20, -1};
  story.fail(EvidenceKind::kExit, 27);
  EXPECT_EQ(story.last().kind, ActionKind::kDecide);
  EXPECT_EQ(story.last().text, "attempt 2 now, from step 20: 3 of 3 nodes are there");
  EXPECT_EQ(story.policy.faults(), 0);
  story.tick(0.01);
  EXPECT_EQ(story.last().kind, ActionKind::kStart);
  EXPECT_EQ(story.policy.state().restarts.size(), 1u);
  story.fail(EvidenceKind::kExit, 27);
  EXPECT_EQ(story.last().kind, ActionKind::kStop) << "nobody moved this one";
}

TEST(Policy, AMoveLeavesHalfOfTheRestarts) {
  Story story({.restarts_per_hour = 4, .restarts = 200, .fruitless_attempts = 100, .backoff_s = 0});
  for (int restarts = 0; restarts < 2; ++restarts) {
    story.fail(EvidenceKind::kSignal, SIGKILL);
    story.tick(0.01);
  }
  story.first_step();
  story.send({EventKind::kMove, 3, {.text = "why"}});
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kRun);
  story.now += 3601;
  story.send({EventKind::kMove, 3, {.text = "why"}});
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kDrain);
}

TEST(Policy, WhatComesDuringAMoveCounts) {
  Story asked(kLaunchSpec);
  asked.first_step();
  asked.send({EventKind::kMove, 1, {.text = "why"}});
  asked.ask_to_stop();
  asked.fail(EvidenceKind::kExit, 27);
  EXPECT_EQ(asked.last().kind, ActionKind::kStop);
  EXPECT_EQ(asked.last().exit_code, 27);
  Story killed(kLaunchSpec);
  killed.first_step();
  killed.send({EventKind::kMove, 1, {.text = "why"}});
  killed.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(killed.policy.faults(), 1);
  EXPECT_EQ(killed.last().kind, ActionKind::kDecide);
  EXPECT_EQ(killed.last().text, "attempt 2 now, from the beginning");
}

TEST(Policy, FencesBeforeItStartsAgain) {
  Story story(kLaunchSpec);
  story.end(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kFence);
  story.tick(30);
  EXPECT_EQ(story.last().kind, ActionKind::kFence) << "nothing starts beside the old attempt";
  story.fenced();
  EXPECT_EQ(story.last().kind, ActionKind::kDecide);
  EXPECT_EQ(story.last().delay_s, 0);
  story.tick(0.01);
  EXPECT_EQ(story.last().kind, ActionKind::kStart);
  EXPECT_EQ(story.last().attempt, 2);
}

TEST(Policy, WaitsForTheEndOfAProcessThatIsGone) {
  Story story(kLaunchSpec);
  story.see(EvidenceKind::kGone);
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kClassify);
  story.tick(0.1);
  story.end(EvidenceKind::kSignal, SIGSEGV);
  EXPECT_EQ(story.policy.cause().fault, FaultClass::kCrash);
  EXPECT_EQ(story.policy.cause().evidence.size(), 2u);

  Story silent(kLaunchSpec);
  silent.see(EvidenceKind::kGone);
  silent.tick(29.9);
  EXPECT_EQ(silent.policy.phase(), LaunchPhase::kClassify);
  silent.tick(30.1);
  EXPECT_EQ(silent.policy.cause().fault, FaultClass::kUnknown);
  EXPECT_EQ(silent.last().kind, ActionKind::kFence);
}

// 0, 5, 15, 60, 300 s and a fifth more at most; a committed step begins anew.
TEST(Policy, WaitsLongerEachTime) {
  Story story({.restarts_per_hour = 100, .fruitless_attempts = 100, .backoff_s = 5});
  for (const double delay_s : {0.0, 5.0, 15.0, 60.0, 300.0, 300.0}) {
    story.fail(EvidenceKind::kSignal, SIGKILL);
    EXPECT_GE(story.last().delay_s, delay_s);
    EXPECT_LE(story.last().delay_s, delay_s * 1.2);
    if (delay_s > 0) story.tick(delay_s * 0.99);
    EXPECT_EQ(story.policy.phase(), delay_s > 0 ? LaunchPhase::kForm : story.policy.phase());
    story.tick(delay_s * 0.21 + 0.01);
    EXPECT_EQ(story.policy.phase(), LaunchPhase::kStart);
  }
  story.steps = {40, 20};
  story.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(story.last().delay_s, 0);
}

TEST(Policy, StopsWhereNoRestartHelps) {
  for (const int code : {2, 22, 23, 29, 64}) {
    Story story(kLaunchSpec);
    story.fail(EvidenceKind::kExit, code, "the reason");
    EXPECT_EQ(story.last().kind, ActionKind::kStop);
    EXPECT_EQ(story.last().exit_code, code);
    EXPECT_NE(story.last().text.find("the reason"), std::string::npos);
  }
}

TEST(Policy, StopsAfterTheRestartsOfAClass) {
  Story story({.fruitless_attempts = 100, .backoff_s = 0});
  story.fail(EvidenceKind::kExit, 25, "no space");
  EXPECT_EQ(story.last().kind, ActionKind::kDecide);
  story.tick(1);
  story.fail(EvidenceKind::kExit, 25, "no space");
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, 25);
}

// Same place, same place, one step older, stop; the signature is in the one line.
TEST(Policy, LeavesACrashLoopByTheLadder) {
  Story story({.backoff_s = 0}, {40, 20});
  for (int attempt = 1; attempt <= 3; ++attempt) {
    story.fail(EvidenceKind::kExit, 70, "internal error: 17");
    ASSERT_EQ(story.last().kind, ActionKind::kDecide);
    story.tick(1);
    EXPECT_EQ(story.last().from_step, attempt == 3 ? std::optional<int64_t>(20) : std::nullopt);
  }
  story.steps = {20, -1};
  story.fail(EvidenceKind::kExit, 70, "internal error: 18");
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, 70);
  EXPECT_NE(story.last().text.find("each ended with crash: internal error: 18"), std::string::npos)
      << story.last().text;
}

// A kill from outside says nothing against the step.
TEST(Policy, KeepsTheStepOfAKilledRun) {
  Story story({.backoff_s = 0}, {40, 20});
  for (int attempt = 1; attempt <= 3; ++attempt) {
    story.fail(EvidenceKind::kSignal, SIGKILL);
    story.tick(1);
    EXPECT_EQ(story.last().kind, ActionKind::kStart);
    EXPECT_EQ(story.last().from_step, std::nullopt);
  }
}

TEST(Policy, GoesBackBeforeTheFirstBadStep) {
  Story story({.backoff_s = 0, .on_numeric = NumericAnswer::kSkipSamples}, {40, 20});
  story.bad_steps = BadSteps{33, 57, 20};
  story.fail(EvidenceKind::kExit, 23);
  EXPECT_EQ(story.last().kind, ActionKind::kDecide);
  EXPECT_NE(story.last().text.find("without what the skipped steps up to step 57 read"),
            std::string::npos)
      << story.last().text;
  story.tick(1);
  EXPECT_EQ(story.last().from_step, 20);
  EXPECT_EQ(story.last().rate_factor, 1);

  Story newest({.backoff_s = 0, .on_numeric = NumericAnswer::kSkipSamples}, {40, 20});
  newest.bad_steps = BadSteps{41, 43, 40};
  newest.fail(EvidenceKind::kExit, 23);
  newest.tick(1);
  EXPECT_EQ(newest.last().kind, ActionKind::kStart);
  EXPECT_EQ(newest.last().from_step, std::nullopt) << "the newest step is older than all of them";
}

// The ranks go back to it at their start, before which the attempt may end.
TEST(Policy, GoesBackUntilAFirstStepIsDone) {
  Story story({.backoff_s = 0, .on_numeric = NumericAnswer::kSkipSamples}, {40, 20});
  story.bad_steps = BadSteps{33, 57, 20};
  story.fail(EvidenceKind::kExit, 23);
  story.tick(1);
  story.fail(EvidenceKind::kSignal, SIGKILL);
  story.tick(1);
  EXPECT_EQ(story.last().from_step, 20);
  story.first_step();
  story.fail(EvidenceKind::kSignal, SIGKILL);
  story.tick(1);
  EXPECT_EQ(story.last().kind, ActionKind::kStart);
  EXPECT_EQ(story.last().from_step, std::nullopt);
}

TEST(Policy, LowersTheRateEachTime) {
  Story story({.backoff_s = 0, .on_numeric = NumericAnswer::kLowerLr, .lr_factor = 0.25}, {40, 20});
  for (const double factor : {0.25, 0.0625}) {
    story.bad_steps = BadSteps{41, 43, 40};
    story.fail(EvidenceKind::kExit, 23);
    story.tick(1);
    EXPECT_EQ(story.last().rate_factor, factor);
  }
  story.fail(EvidenceKind::kSignal, SIGKILL);
  story.tick(1);
  EXPECT_EQ(story.last().rate_factor, 0.0625) << "a kill changes nothing about the rate";
  story.fail(EvidenceKind::kExit, 23);
  EXPECT_EQ(story.last().kind, ActionKind::kStop) << "the fourth end without a new step";
  EXPECT_EQ(story.policy.state().rate_factor, 0.0625) << "no attempt has had a lower one";
}

TEST(Policy, StopsWhereNoStepIsBeforeTheBadOnes) {
  const LaunchSpec limits{.backoff_s = 0, .on_numeric = NumericAnswer::kSkipSamples};
  Story late(limits, {40, 20});
  late.bad_steps = BadSteps{7, 57, -1};
  late.fail(EvidenceKind::kExit, 23);
  EXPECT_EQ(late.last().exit_code, 23);
  EXPECT_NE(late.last().text.find("no step before step 7"), std::string::npos);
  Story unknown(limits, {40, 20});
  unknown.fail(EvidenceKind::kExit, 23);
  EXPECT_EQ(unknown.last().exit_code, 23);
  Story unread(limits, {40, 20});
  unread.bad_steps = BadSteps{.problem = "the disk is gone"};
  unread.fail(EvidenceKind::kExit, 23);
  EXPECT_NE(unread.last().text.find("; the disk is gone"), std::string::npos);
  Story early(limits);
  early.bad_steps = BadSteps{7, 9, -1};
  early.fail(EvidenceKind::kExit, 23);
  EXPECT_EQ(early.last().kind, ActionKind::kDecide) << "the run begins again";
}

// Two launchers that are killed, and a third that gives up.
TEST(Policy, CountsOnAfterItsLaunchersDeath) {
  const LaunchSpec limits{.restarts = 2, .backoff_s = 0};
  Story first(limits, {40, 20});
  first.fail(EvidenceKind::kSignal, SIGKILL);
  Story second(limits, {40, 20}, first.policy.state());
  second.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(second.policy.faults(), 2);
  Story third(limits, {40, 20}, second.policy.state());
  third.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(third.last().exit_code, kSpentExitCode);
  Story fourth(limits, {40, 20}, third.policy.state());
  fourth.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(fourth.last().kind, ActionKind::kDecide) << "a person has started it";
}

TEST(Policy, ClimbsTheLadderAcrossLaunchers) {
  const LaunchSpec limits{.backoff_s = 0};
  PolicyState state;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Story story(limits, {40, 20}, state);
    story.fail(EvidenceKind::kExit, 70, "internal error: 17");
    ASSERT_EQ(story.last().kind, ActionKind::kDecide);
    state = story.policy.state();
  }
  Story last(limits, {40, 20}, state);
  EXPECT_EQ(last.last().from_step, 20);
  last.steps = {20, -1};
  last.fail(EvidenceKind::kExit, 70, "internal error: 17");
  EXPECT_EQ(last.last().exit_code, 70);
  Story progress(limits, {60, 40}, state);
  progress.fail(EvidenceKind::kExit, 70, "internal error: 17");
  EXPECT_EQ(progress.last().kind, ActionKind::kDecide) << "a new step was committed since";
}

TEST(Policy, StopsAtTheBudgetOfAnHour) {
  Story story({.restarts_per_hour = 3, .backoff_s = 0});
  for (int i = 0; i < 3; ++i) {
    story.steps.newest += 20;
    story.fail(EvidenceKind::kSignal, SIGKILL);
    story.tick(1);
    EXPECT_EQ(story.last().kind, ActionKind::kStart);
  }
  Story later = story;
  story.steps.newest += 20;
  story.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, kSpentExitCode);
  later.tick(3600);
  later.steps.newest += 20;
  later.fail(EvidenceKind::kSignal, SIGKILL);
  EXPECT_EQ(later.last().kind, ActionKind::kDecide);
}

TEST(Policy, DrainsWhenAskedToStop) {
  Story story(kLaunchSpec);
  story.first_step();
  story.ask_to_stop();
  EXPECT_EQ(story.last().kind, ActionKind::kTerminate);
  story.ask_to_stop();
  EXPECT_EQ(story.actions.size(), 2u) << "the second signal changes nothing";
  story.fail(EvidenceKind::kExit, 27);
  EXPECT_EQ(story.policy.faults(), 0) << "an end that was asked for is no fault";
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, 27);

  Story waiting(kLaunchSpec);
  waiting.fail(EvidenceKind::kSignal, SIGKILL);
  waiting.ask_to_stop();
  EXPECT_EQ(waiting.last().kind, ActionKind::kStop);
  EXPECT_EQ(waiting.last().exit_code, 27);
}

TEST(Policy, StopsBesideProcessesThatCannotBeKilled) {
  Story story(kLaunchSpec);
  story.see(EvidenceKind::kSuspended);
  story.tick(61);
  EXPECT_EQ(story.last().kind, ActionKind::kStop);
  EXPECT_EQ(story.last().exit_code, 29);
}

// An event by chance: an end, a sight, a late word of the attempt before, or mostly time.
void happen(Story& story, std::mt19937_64& random) {
  const auto below = [&](int bound) { return int(random() % uint64_t(bound)); };
  constexpr EvidenceKind kSights[] = {EvidenceKind::kGone,      EvidenceKind::kOutOfMemory,
                                      EvidenceKind::kSuspended, EvidenceKind::kMissing,
                                      EvidenceKind::kStuck,     EvidenceKind::kSilent};
  const int attempt = story.policy.attempt() - (below(10) == 0 ? 1 : 0);
  const int chance = below(40);
  if (chance == 0)
    story.send({EventKind::kSeen, attempt, {kSights[below(6)], below(8), 0, "seen"}});
  else if (chance == 1)
    story.send({EventKind::kEnded, attempt, {EvidenceKind::kExit, 0, 20 + below(12), ""}});
  else if (chance < 5)
    story.send({EventKind::kEnded, attempt, {EvidenceKind::kSignal, 0, 1 + below(15), ""}});
  else if (chance == 5 && below(100) == 0)
    story.ask_to_stop();
  else if (chance == 6 && below(100) == 0)
    story.send({EventKind::kEnded, attempt});  // with 0
  else if (chance == 7)
    story.first_step();
  else if (chance < 10 && story.lives)
    story.steps = {story.steps.newest + 20, story.steps.newest};
  else if (story.must_fence && below(3) == 0)
    story.fenced();
  else
    story.tick(below(20) * 0.5);
}

// A restart is decided at most 144 s before its start.
void expect_budgets(const Story& story, const LaunchSpec& limits) {
  const std::vector<double>& starts = story.starts;
  EXPECT_LE(int64_t(starts.size()), limits.restarts + 1);
  for (auto start = starts.begin(); start != starts.end(); ++start)
    EXPECT_LE(std::count_if(start, starts.end(), [&](double t) { return t < *start + 3456; }),
              limits.restarts_per_hour + 1);
}

// From here on every attempt hangs, and the world answers.
void expect_end(Story& story) {
  for (int i = 0; i < 2000 && story.policy.phase() != LaunchPhase::kStop; ++i) {
    const LaunchPhase phase = story.policy.phase();
    if (story.must_fence)
      story.fenced();
    else if (phase == LaunchPhase::kStart || phase == LaunchPhase::kRun)
      story.see(EvidenceKind::kSilent);
    else if (phase == LaunchPhase::kDrain)
      story.end(EvidenceKind::kExit, 27);
    else
      story.tick(20);
  }
  EXPECT_EQ(story.policy.phase(), LaunchPhase::kStop)
      << "stuck in " << name_of(story.policy.phase());
}

// Whatever comes in whatever order: one attempt at a time, no start beside an old one, no budget
// passed, and no state in which the policy stays.
void simulate(uint64_t seed, int num_events) {
  std::mt19937_64 random(seed);
  const auto below = [&](int bound) { return int(random() % uint64_t(bound)); };
  for (int done = 0; done < num_events && !testing::Test::HasFailure();) {
    const LaunchSpec limits{.restarts_per_hour = 1 + below(12),
                            .restarts = 1 + below(40),
                            .fruitless_attempts = 1 + below(6),
                            .backoff_s = double(below(3))};
    Story story(limits);
    for (; story.policy.phase() != LaunchPhase::kStop && done < num_events; ++done)
      happen(story, random);
    expect_budgets(story, limits);
    expect_end(story);
  }
}

TEST(Policy, SurvivesRandomEvents) {
  simulate(1, 100'000);
}

TEST(Policy, SurvivesAMillionRandomEvents) {
  simulate(2, 1'000'000);
}

// Every leader is a Policy that counts on from the one before.
TEST(Policy, ALostLeaderIsARestart) {
  LaunchSpec limits;
  limits.restarts = 2;
  PolicyState state;
  for (int lost = 1; lost <= 3; ++lost) {
    Policy policy(limits, lost + 1, {20, 10}, state);
    const auto actions = policy.on({.kind = EventKind::kTookOver,
                                    .evidence = {EvidenceKind::kNodeLost, -1, 0, "it is gone"},
                                    .steps = {20, 10}},
                                   100.0 * lost);
    ASSERT_EQ(actions.size(), 2u);
    EXPECT_EQ(actions[0].kind, ActionKind::kReport);
    EXPECT_EQ(policy.cause().fault, FaultClass::kNodeLost);
    EXPECT_EQ(actions[1].kind, lost < 3 ? ActionKind::kDecide : ActionKind::kStop);
    EXPECT_EQ(actions[1].exit_code, lost < 3 ? 0 : kSpentExitCode);
    if (lost == 1) {
      const auto start = policy.on({EventKind::kTick}, 100.0);
      ASSERT_EQ(start.size(), 1u);
      EXPECT_EQ(start[0].attempt, 2) << "at once";
      EXPECT_EQ(policy.faults(), 1);
    }
    state = policy.state();
  }
}

}  // namespace
}  // namespace ashlar::launch
