// The nodes and the layout of the next attempt: stories of a few nodes.
#include "ashlar/launch/node_placement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ashlar::launch {
namespace {

using Names = std::vector<std::string>;

// Nodes v1, v2, ... whose agents answer checks as the story says.
struct NodeStory {
  explicit NodeStory(const NodeRules& rules, int num_nodes) : placement(rules, 0) {
    for (int i = 1; i <= num_nodes; ++i) nodes.push_back({fmt::format("v{}", i)});
    placement.know({"q",
                    {{.nodes = 4, .step_s = 1},
                     {.nodes = 3, .keys = {"parallel.pp=3"}, .mesh = "three", .step_s = 1.3},
                     {.nodes = 2, .keys = {"parallel.cp=2"}, .mesh = "two", .step_s = 2}}});
  }
  NodeView& node(int number) { return nodes[size_t(number - 1)]; }
  // Answers every check that is asked for, and decides again.
  NodePlacement::Decision decide(CheckResult answer = {.product_rate = 1, .memory_rate = 10}) {
    NodePlacement::Decision decision = placement.decide(nodes, now);
    if (!decision.missing.starts_with("checks")) return decision;
    answer_checks(answer);
    return placement.decide(nodes, now);
  }
  void answer_checks(CheckResult answer) {
    for (const NodeView& node : nodes)
      if (const CheckOrder order = placement.check_of(node.name); order.number > 0) {
        answer.number = order.number;
        placement.take(node.name, answer, now);
      }
  }
  void lose(int number) { node(number).ready = false; }

  NodePlacement placement;
  std::vector<NodeView> nodes;
  double now = 100;
};

constexpr NodeRules kFull{.num_nodes = 4, .elastic = Elastic::kFull};

TEST(NodePlacement, ChecksEveryNodeBeforeAnAttempt) {
  NodeStory story({.num_nodes = 2}, 3);
  NodePlacement::Decision decision = story.placement.decide(story.nodes, story.now);
  EXPECT_EQ(decision.missing, "checks v1, v2");
  EXPECT_TRUE(story.placement.check_of("v1").thorough) << "a new node";
  EXPECT_EQ(story.placement.check_of("v3").number, 0);
  decision = story.decide();
  EXPECT_EQ(decision.missing, "");
  EXPECT_EQ(decision.nodes, (Names{"v1", "v2"}));
  EXPECT_FALSE(decision.layout);
  story.placement.start(decision);
  story.placement.suspect("v2");
  decision = story.placement.decide(story.nodes, story.now);
  EXPECT_EQ(decision.missing, "checks v1, v2") << "ranks have run there since";
  EXPECT_FALSE(story.placement.check_of("v1").thorough);
  EXPECT_TRUE(story.placement.check_of("v2").thorough) << "it was blamed";
  NodeStory later({.num_nodes = 2, .first_check = 900}, 3);
  later.placement.decide(later.nodes, later.now);
  EXPECT_GE(later.placement.check_of("v1").number, 900) << "an agent takes it for a new one";
  NodeStory trusting({.num_nodes = 2, .preflight = false}, 3);
  EXPECT_EQ(trusting.placement.decide(trusting.nodes, 100).missing, "");
}

TEST(NodePlacement, ReplacesANodeThatFailsItsCheck) {
  NodeStory story({.num_nodes = 2}, 3);
  story.placement.decide(story.nodes, story.now);
  const CheckOrder of_v1 = story.placement.check_of("v1");
  EXPECT_FALSE(story.placement.take("v1", {of_v1.number + 99}, story.now)) << "of another check";
  const auto failure = story.placement.take(
      "v1", {.number = of_v1.number, .passed = false, .evidence = "wrong data", .sure = true},
      story.now);
  ASSERT_TRUE(failure);
  EXPECT_TRUE(failure->broken);
  EXPECT_EQ(failure->evidence, "wrong data");
  EXPECT_EQ(story.decide().nodes, (Names{"v2", "v3"}));
  story.lose(3);
  EXPECT_EQ(story.decide().missing, "1 of 2 nodes are ready (v2); v1: wrong data")
      << "a broken node is not used even if nodes are too few";
  story.now += NodePlacement::kAgain_s + 1;
  EXPECT_EQ(story.decide().nodes, (Names{"v1", "v2"})) << "it passes now";
}

TEST(NodePlacement, LooksTwiceBeforeANodeIsBroken) {
  NodeStory story({.num_nodes = 2}, 2);
  const CheckResult late{.passed = false, .evidence = "late"};
  story.placement.start(story.decide());
  story.placement.decide(story.nodes, story.now);
  EXPECT_FALSE(story.placement.check_of("v1").thorough);
  const auto fail = [&] {
    return story.placement.take(
        "v1", {story.placement.check_of("v1").number, late.passed, late.evidence}, story.now);
  };
  EXPECT_FALSE(fail());
  story.placement.decide(story.nodes, story.now);
  EXPECT_TRUE(story.placement.check_of("v1").thorough) << "a second look";
  EXPECT_TRUE(fail());
  EXPECT_EQ(story.decide().missing, "1 of 2 nodes are ready (v2); v1: late");
}

TEST(NodePlacement, TakesASlowNodeOnlyIfThereIsNoOther) {
  NodeStory story({.num_nodes = 3}, 4);
  story.placement.decide(story.nodes, story.now);
  for (const char* name : {"v1", "v2", "v3"}) {
    const double rate = name == std::string("v2") ? 8.4 : 10;  // 0.84 of the median
    story.placement.take(name, {story.placement.check_of(name).number, true, "", 1, rate},
                         story.now);
  }
  EXPECT_EQ(story.decide().nodes, (Names{"v1", "v3", "v4"}));
  const auto slow = story.placement.take_slow();
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].node, "v2");
  EXPECT_FALSE(slow[0].broken);
  EXPECT_EQ(slow[0].evidence, "its copies in memory reach 0.84 of the median rate of the nodes");
  story.lose(4);
  EXPECT_EQ(story.decide().nodes, (Names{"v1", "v2", "v3"}));
  const NodePlacement::Decision decision = story.decide();
  EXPECT_EQ(decision.missing, "");
  story.placement.start(decision);
  EXPECT_EQ(story.placement.decide(story.nodes, story.now).missing, "checks v1, v2, v3")
      << "ranks have run there since";
}

TEST(NodePlacement, FailsANodeThatDoesNotAnswer) {
  NodeStory story({.num_nodes = 2}, 2);
  story.placement.decide(story.nodes, story.now);
  story.placement.take("v1", {story.placement.check_of("v1").number}, story.now);
  story.now += NodePlacement::kAnswer_s + 1;
  EXPECT_EQ(story.placement.decide(story.nodes, story.now).missing,
            "1 of 2 nodes are ready (v1); v2: its agent does not answer with the check");
}

TEST(NodePlacement, ShrinksOnceNodesHadTimeToCome) {
  NodeStory story(kFull, 4);
  story.lose(2);
  story.now = 5;
  EXPECT_EQ(story.decide().missing, "3 of 4 nodes are ready (v1, v3, v4)");
  story.now = 11;
  const NodePlacement::Decision decision = story.decide();
  EXPECT_EQ(decision.missing, "");
  EXPECT_EQ(decision.nodes, (Names{"v1", "v3", "v4"}));
  EXPECT_EQ(decision.layout->mesh, "three");
  story.lose(3);
  EXPECT_EQ(story.decide().layout->keys, (Names{"parallel.cp=2"}));
  story.lose(4);
  EXPECT_EQ(story.decide().missing, "1 of 4 nodes are ready (v1)") << "no layout of one is known";
  NodeStory rigid({.num_nodes = 4}, 3);
  EXPECT_EQ(rigid.decide().missing, "3 of 4 nodes are ready (v1, v2, v3)");
}

TEST(NodePlacement, ShrinksAtOnceAfterAFault) {
  NodeStory story({.num_nodes = 4, .elastic = Elastic::kShrink, .patience_s = 300}, 4);
  story.placement.start(story.decide());
  story.lose(2);
  EXPECT_EQ(story.decide().nodes, (Names{"v1", "v3", "v4"}));
  NodeStory first({.num_nodes = 4, .elastic = Elastic::kShrink, .patience_s = 300}, 3);
  EXPECT_EQ(first.decide().missing, "3 of 4 nodes are ready (v1, v2, v3)");
}

TEST(NodePlacement, GrowsWhenCheckedNodesAreBack) {
  NodeStory story(kFull, 4);
  story.lose(1);
  story.lose(2);
  story.placement.start(story.decide());
  ASSERT_EQ(story.placement.layout()->mesh, "two");
  EXPECT_FALSE(story.placement.grow(story.nodes, story.now));
  story.node(1).ready = story.node(2).ready = true;
  EXPECT_FALSE(story.placement.grow(story.nodes, story.now)) << "they are not checked yet";
  story.placement.check_spares(story.nodes, story.now);
  story.answer_checks({});
  const auto move = story.placement.grow(story.nodes, story.now);
  ASSERT_TRUE(move);
  EXPECT_DOUBLE_EQ(move->share, 0.5) << "2 s a step become 1 s";
  story.node(2).held = true;
  EXPECT_DOUBLE_EQ(story.placement.grow(story.nodes, story.now)->share, 1 - 1.3 / 2);
  story.node(2).held = false;
  const NodePlacement::Decision whole = story.decide();
  EXPECT_FALSE(whole.layout);
  story.placement.start(whole);
  EXPECT_FALSE(story.placement.grow(story.nodes, story.now));

  NodeStory shrinks({.num_nodes = 4, .elastic = Elastic::kShrink, .preflight = false}, 4);
  shrinks.lose(1);
  shrinks.placement.start(shrinks.decide());
  shrinks.node(1).ready = true;
  EXPECT_FALSE(shrinks.placement.grow(shrinks.nodes, shrinks.now)) << "not before a fault";
  EXPECT_FALSE(shrinks.decide().layout);
}

TEST(NodePlacement, ChecksSparesEveryHalfHour) {
  NodeStory story({.num_nodes = 2}, 3);
  story.placement.start(story.decide());
  story.placement.check_spares(story.nodes, story.now);
  EXPECT_TRUE(story.placement.check_of("v3").thorough);
  EXPECT_EQ(story.placement.check_of("v1").number, 0) << "ranks run there";
  story.answer_checks({});
  story.now += 1799;
  story.placement.check_spares(story.nodes, story.now);
  EXPECT_EQ(story.placement.check_of("v3").number, 0);
  story.lose(1);
  EXPECT_EQ(story.placement.decide(story.nodes, story.now).missing, "checks v2")
      << "the spare is known to be good";
  story.now += 2;
  story.placement.check_spares(story.nodes, story.now);
  EXPECT_FALSE(story.placement.check_of("v3").thorough);
  EXPECT_GT(story.placement.check_of("v3").number, 0);
}

TEST(NodePlacement, LeavesASlowNodeForASpare) {
  NodeStory story({.num_nodes = 2}, 3);
  story.placement.start(story.decide());
  EXPECT_FALSE(story.placement.leave("v1", 0.3, story.nodes, story.now)) << "v3 is not checked";
  story.placement.check_spares(story.nodes, story.now);
  story.answer_checks({});
  const auto move = story.placement.leave("v1", 0.3, story.nodes, story.now);
  ASSERT_TRUE(move);
  EXPECT_EQ(move->from_node, "v1");
  EXPECT_DOUBLE_EQ(move->share, 0.3);
  story.lose(3);
  EXPECT_FALSE(story.placement.leave("v1", 0.3, story.nodes, story.now));
}

}  // namespace
}  // namespace ashlar::launch
