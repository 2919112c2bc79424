// The decisions of a leader about its nodes: stories of a few nodes.
#include "ashlar/launch/fleet_decisions.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::launch {
namespace {

using Names = std::vector<std::string>;
using testing_support::message_of;

constexpr double kCalendar_s = 1.7e9;

// Agents 1, 2, ... of the nodes v1, v2, ... report twice a second, unless they are silent.
struct FleetStory {
  FleetStory(const NodeRules& rules, int num_nodes) : decisions(rules, {}, 0, {0, kCalendar_s}) {
    for (int i = 1; i <= num_nodes; ++i) reports[i].node = "v" + std::to_string(i);
    run(1);
  }
  void hear() {
    for (const auto& [number, report] : reports)
      if (!silent.contains(number)) decisions.hear(number, report);
  }
  void run(double seconds) {
    for (const double end = now + seconds; now < end;) {
      now += 0.5;
      decisions.pass({now, kCalendar_s + now});
      hear();
    }
  }
  // The leader does not run: nobody is heard, and then everybody at once.
  void suspend(double seconds) {
    now += seconds;
    decisions.pass({now, kCalendar_s + now});
  }
  void answer(int number, bool passed = true, bool sure = false) {
    AgentReport& report = reports[number];
    report.check = {
        decisions.check_of(report.node).number, passed, passed ? "" : "wrong", 1, 10, sure};
    decisions.hear(number, report);
  }
  void start() {
    decisions.decide();
    for (const auto& [number, report] : reports) answer(number);
    decisions.decide();
    decisions.start(++attempt);
  }

  FleetDecisions decisions;
  std::map<int, AgentReport> reports;
  std::set<int> silent;
  double now = 0;
  int attempt = 0;
};

TEST(FleetDecisions, NameALostNodeOnce) {
  FleetStory story({.num_nodes = 2}, 3);
  story.start();
  EXPECT_EQ(story.decisions.nodes(), (Names{"v1", "v2"}));
  story.silent = {2, 3};
  story.run(4);
  EXPECT_FALSE(story.decisions.take_loss());
  story.run(2);
  const std::optional<Evidence> loss = story.decisions.take_loss();
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->kind, EvidenceKind::kNodeLost);
  EXPECT_TRUE(loss->text.starts_with("node v2 is lost: ")) << "v3 is a spare: " << loss->text;
  EXPECT_FALSE(story.decisions.take_loss());
  EXPECT_EQ(story.decisions.num_heard(FleetDecisions::kLost_s), 1);
  EXPECT_EQ(story.decisions.num_heard(60), 3);
}

TEST(FleetDecisions, LoseNobodyWhileTheLeaderIsSuspended) {
  FleetStory story({.num_nodes = 2}, 2);
  story.start();
  story.suspend(20);
  EXPECT_FALSE(story.decisions.take_loss());
  EXPECT_TRUE(story.decisions.is_heard(1));
  story.silent = {2};
  story.run(5.5);
  EXPECT_TRUE(story.decisions.take_loss()) << "it is silent while the leader runs";
}

// Neither a leader that is suspended nor a broken link uses up the time for an answer.
TEST(FleetDecisions, WaitForAnswersThatCannotCome) {
  FleetStory story({.num_nodes = 2}, 2);
  EXPECT_EQ(story.decisions.decide().missing, "checks v1, v2");
  story.answer(1);
  story.run(10);
  story.suspend(20);
  story.run(5);
  EXPECT_EQ(story.decisions.decide().missing, "checks v2");
  story.silent = {2};
  story.run(30);
  EXPECT_EQ(story.decisions.decide().missing, "1 of 2 nodes are ready (v1)");
  story.silent.clear();
  story.run(5);
  EXPECT_EQ(story.decisions.decide().missing, "checks v2");
  story.run(NodePlacement::kAnswer_s);
  EXPECT_EQ(story.decisions.decide().missing,
            "1 of 2 nodes are ready (v1); v2: its agent does not answer with the check");
  EXPECT_EQ(story.decisions.take_notes(),
            (Names{"node v2: its agent does not answer with the check"}));
}

TEST(FleetDecisions, WaitForTheRanksOfAnEarlierAttempt) {
  FleetStory story({.num_nodes = 2}, 2);
  story.start();
  EXPECT_EQ(story.decisions.fence(), 0);
  EXPECT_TRUE(story.decisions.begin_fence());
  EXPECT_FALSE(story.decisions.begin_fence());
  EXPECT_EQ(story.decisions.fence(), 1);
  EXPECT_FALSE(story.decisions.is_fenced());
  story.reports[1].fenced = 1;
  story.reports[2].fenced = -1;  // a rank of it lives
  story.run(1);
  EXPECT_FALSE(story.decisions.is_fenced());
  EXPECT_EQ(story.decisions.decide().missing, "1 of 2 nodes are ready (v1)");
  story.run(FleetDecisions::kFencePatience_s);
  EXPECT_TRUE(story.decisions.is_fenced());
  EXPECT_EQ(story.decisions.decide().missing, "1 of 2 nodes are ready (v1)");
  story.reports[2].fenced = 1;
  story.run(1);
  EXPECT_EQ(story.decisions.decide().missing, "checks v1, v2");
}

TEST(FleetDecisions, KeepANodeInQuarantineAsItIs) {
  FleetStory story({.num_nodes = 2}, 3);
  story.decisions.decide();
  story.answer(1, false, true);
  ASSERT_EQ(story.decisions.take_notes().size(), 1u);
  EXPECT_TRUE(story.decisions.quarantine().is_broken("v1", kCalendar_s + story.now));
  story.answer(2);
  story.decisions.decide();
  story.answer(3);
  story.decisions.decide();
  story.decisions.start(1);
  story.run(NodePlacement::kSpare_s + 1);
  story.decisions.check_spares();
  ASSERT_GT(story.decisions.check_of("v1").number, 0);
  story.answer(1, false, true);
  EXPECT_TRUE(story.decisions.take_notes().empty()) << "it is known";
  EXPECT_EQ(story.decisions.quarantine().verdicts().at("v1").strikes, 1);
}

TEST(FleetDecisions, StartOncePerDecision) {
  FleetStory story({.num_nodes = 1}, 1);
  EXPECT_NE(message_of(ErrorKind::kLaunch, [&] { story.decisions.start(1); }).find("too few"),
            std::string::npos);
  story.start();
  message_of(ErrorKind::kLaunch, [&] { story.decisions.start(2); });
}

TEST(FleetDecisions, UseOnlyNodesThatTheStarterHas) {
  FleetStory story({.num_nodes = 2, .preflight = false}, 3);
  EXPECT_EQ(story.decisions.decide().nodes, (Names{"v1", "v2"}));
  story.decisions.know_startable(Names{"v3", "v2"});
  EXPECT_EQ(story.decisions.decide().nodes, (Names{"v2", "v3"}));
  story.decisions.know_startable(std::nullopt);
  EXPECT_EQ(story.decisions.decide().nodes, (Names{"v1", "v2"}));
}

}  // namespace
}  // namespace ashlar::launch
