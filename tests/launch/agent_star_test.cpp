#include "ashlar/launch/agent_star.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <set>

#include "ashlar/core/clock.h"
#include "ashlar/core/error.h"
#include "ashlar/launch/agent_messages.h"

namespace ashlar::launch {
namespace {

constexpr control::Epoch kKey{1, 2, 3}, kOtherKey{3, 2, 1};

// One end of a link, which says one thing as soon as it may.
class StarEnd {
 public:
  StarEnd(const AgentStar& star, int number, const control::Epoch& key) {
    const control::Address address = control::parse_address(star.address());
    link_ = std::make_unique<control::Connection>(control::Connection::start(
        address.hosts[0], address.port,
        control::Handshake::of_child(key, number, 0, control::random_nonce()), kMaxAgentBody));
  }
  void serve() {
    if (!link_) return;
    pollfd ready{link_->fd(), link_->events(), 0};
    poll(&ready, 1, 0);
    try {
      link_->serve(ready.revents, [&](const control::Frame&) { ++heard; });
      if (!link_->proved() || std::exchange(said_, true)) return;
      link_->queue(kReportFrame, {});
    } catch (const Error&) {
      link_.reset();
    }
  }
  bool lives() const { return link_ != nullptr; }
  int heard = 0;  // frames

 private:
  std::unique_ptr<control::Connection> link_;
  bool said_ = false;
};

struct StarStory {
  AgentStar star{control::Listener(control::Reach::kMachine), kKey};
  std::vector<StarEnd> ends;
  std::multiset<int> heard;  // numbers of agents

  template <class F>
  void serve_until(F&& enough) {
    const auto begin = Clock::now();
    while (!enough() && seconds_since(begin) < 20) {
      star.serve(kReportFrame, [&](int agent, auto) { heard.insert(agent); });
      for (StarEnd& end : ends) end.serve();
    }
    EXPECT_TRUE(enough());
  }
};

TEST(AgentStar, HearsMoreAgentsAtOnceThanHandshakesAreUnderWay) {
  constexpr int kAgents = 3 * AgentStar::kMaxStrangers;
  StarStory story;
  for (int i = 1; i <= kAgents; ++i) story.ends.emplace_back(story.star, i, kKey);
  story.serve_until([&] { return story.heard.size() == kAgents; });
  for (int i = 1; i <= kAgents; ++i) EXPECT_EQ(story.heard.count(i), 1u) << i;
  EXPECT_EQ(story.star.num_refused(), 0);
}

TEST(AgentStar, RefusesThoseWithoutTheKey) {
  constexpr int kStrangers = 2 * AgentStar::kMaxStrangers;
  StarStory story;
  for (int i = 1; i <= kStrangers; ++i) story.ends.emplace_back(story.star, i, kOtherKey);
  story.ends.emplace_back(story.star, 1, kKey);
  story.ends.emplace_back(story.star, AgentStar::kMaxAgents + 1, kKey);
  story.serve_until([&] { return story.star.num_refused() == kStrangers + 1; });
  story.serve_until([&] { return !story.heard.empty(); });
  EXPECT_EQ(story.heard, std::multiset<int>{1});
}

TEST(AgentStar, SendsToTheAgentThatCameLast) {
  StarStory story;
  story.ends.emplace_back(story.star, 7, kKey);
  story.serve_until([&] { return story.heard.size() == 1; });
  story.ends.emplace_back(story.star, 7, kKey);
  story.serve_until([&] { return story.heard.size() == 2; });
  story.star.send(7, kOrderFrame, {});
  story.star.send(8, kOrderFrame, {});  // who is not linked misses it
  story.serve_until([&] { return story.ends[1].heard == 1 && !story.ends[0].lives(); });
  EXPECT_EQ(story.ends[0].heard, 0);
}

}  // namespace
}  // namespace ashlar::launch
