// A node of a simulated cluster: its agent does what launch/node_agent.cpp does, with ranks and
// checks that only take time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "ashlar/launch/agent_messages.h"

namespace ashlar::launch {

class SimulatedNode {
 public:
  enum class Health : uint8_t { kSound, kBroken, kSlow, kMute };  // mute: it answers no check
  static constexpr double kForlorn_s =
      60;  // without a leader, after which an agent kills its ranks

  explicit SimulatedNode(std::string name) { report_.node = std::move(name); }
  const std::string& name() const { return report_.node; }

  // The world's part.
  void break_down() {
    up_ = false;
    ranks_of_ = 0;
    forget_leader();
    report_.check = {};
    order_ = {};
    has_passed_ = false;
  }
  void come_up() { up_ = true; }
  void cut(double until_s) { cut_until_s_ = std::max(cut_until_s_, until_s); }
  void turn(Health health, double now) {
    if (health != health_) changed_s_ = now;
    health_ = health;
  }
  void start_ranks(int64_t attempt) {
    ranks_of_ = attempt;
    ranks_end_s_ = 0;
    has_passed_ = false;
  }

  // The agent's part.  A new leader's orders are those of a new epoch.
  void forget_leader() { fence_ = 0; }
  void obey(int64_t fence, const CheckOrder& check, double now, std::mt19937_64& random) {
    fence_ = fence;
    heard_s_ = now;
    if (ranks_of_ > 0 && ranks_of_ <= fence_) kill_ranks(now, random);
    if (check.number == 0 || check.number == order_.number) return;
    order_ = check;
    const double most_s = check.thorough ? Preflight::kThorough_s : Preflight::kQuick_s;
    answers_s_ = now + std::uniform_real_distribution(1.0, most_s)(random);
  }
  void live(double now, std::mt19937_64& random) {
    if (!up_) return;
    if (ranks_of_ > 0 && now - heard_s_ > kForlorn_s) kill_ranks(now, random);
    if (ranks_of_ > 0 && ranks_end_s_ > 0 && now >= ranks_end_s_) ranks_of_ = 0;
    if (order_.number != report_.check.number && now >= answers_s_ && health_ != Health::kMute)
      answer(now, random);
    report_.fenced = ranks_of_ > 0 && ranks_of_ <= fence_ ? -1 : fence_;
  }
  const AgentReport& report() const { return report_; }

  bool is_up() const { return up_; }
  bool is_linked(double now) const { return up_ && now >= cut_until_s_; }
  bool has_ranks() const { return ranks_of_ > 0; }
  bool has_passed() const { return has_passed_; }  // a check, since ranks ran here
  bool is_sound(double for_s, double now) const {
    return health_ == Health::kSound && now - changed_s_ >= for_s;
  }
  Health health() const { return health_; }

  // When something last spoke against the node, whether the leader has seen it or not: wrong
  // results, a second failed check in a row, or a rank that ended with 29; a low rate.
  double guilty_s = -1e9, slow_s = -1e9;
  double silent_s = 0, linked_s = 0;  // without and with a link to the leader, while that one runs

 private:
  void kill_ranks(double now, std::mt19937_64& random) {
    if (ranks_end_s_ > 0) return;
    const bool lingers = random() % 2000 == 0;  // in the kernel, on a device
    ranks_end_s_ = now + (lingers ? 50 : std::uniform_real_distribution(0.1, 3.0)(random));
  }
  void answer(double now, std::mt19937_64& random) {
    const bool broken = health_ == Health::kBroken;
    const bool fails = broken || random() % 500 == 0;  // a sound node does so once in a while
    report_.check = {order_.number, !fails, fails ? "it fails" : "", 1, 10};
    report_.check.sure = broken && random() % 2 == 0;
    if (health_ == Health::kSlow) {
      report_.check.memory_rate = 8;
      slow_s = now;
    }
    has_passed_ = !fails;
    num_failures_ = fails ? num_failures_ + 1 : 0;
    if (num_failures_ > 1 || report_.check.sure) {
      guilty_s = changed_s_ = now;
    }
  }

  AgentReport report_;
  bool up_ = true, has_passed_ = false;
  Health health_ = Health::kSound;
  double changed_s_ = -1e9, cut_until_s_ = 0, heard_s_ = 0;
  int64_t fence_ = 0, ranks_of_ = 0;
  double ranks_end_s_ = 0;  // 0: nobody has killed them
  CheckOrder order_;
  double answers_s_ = 0;
  int num_failures_ = 0;  // checks in a row
};

}  // namespace ashlar::launch
