// The decisions about a large cluster (launch/fleet_decisions.h) and about its faults
// (launch/policy.h), in a world where nodes are lost, cut off, broken or slow, checks stay without
// an answer, leaders are suspended and replaced.  The world knows the truth about every node, and
// compares.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "ashlar/core/clock.h"
#include "ashlar/core/json.h"
#include "ashlar/launch/epochs.h"
#include "ashlar/launch/fleet_decisions.h"
#include "ashlar/launch/policy.h"
#include "tests/launch/simulated_node.h"

namespace ashlar::launch {
namespace {

class Cluster {
 public:
  static constexpr double kTurn_s = 0.5;
  static constexpr int kPerHour = 30;

  // fault_every: turns between two failures of ranks, in the mean.  decide_every: turns between two
  // decisions, which take milliseconds where nodes are many.
  Cluster(uint64_t seed, int num_nodes, int world, int fault_every, int decide_every)
      : world_(world), fault_every_(fault_every), decide_every_(decide_every), random_(seed) {
    for (int i = 0; i < num_nodes; ++i) nodes_.emplace_back(fmt::format("n{}", 1000 + i));
    for (int share = 8; share >= 4; --share)
      layouts_.all.push_back({.nodes = world * share / 8, .step_s = 8.0 / share});
    begin_lead();
  }
  void turn();
  void expect_variety() const;

  int64_t num_events = 0;  // things that happened to nodes, beside their regular reports
  int num_starts = 0;
  double longest_s = 0;  // that a decision took, by this machine's clock

 private:
  bool happens(int one_in) { return random_() % uint64_t(one_in) == 0; }
  double between(double low, double high) {
    return std::uniform_real_distribution(low, high)(random_);
  }
  SimulatedNode& any_node() { return nodes_[random_() % nodes_.size()]; }
  SimulatedNode& node(const std::string& name) {  // "n1000" is the first one
    return nodes_[size_t(std::stoi(name.substr(1)) - 1000)];
  }
  FleetTime time() const { return {now_, 1.7e9 + now_}; }

  // The world.
  void disturb();
  void disturb_leader();
  void exchange();
  void lose_leader();

  // The launcher around the decisions, as launch/launcher.cpp has it.
  void begin_lead();
  void lead();
  void form();
  void run();
  void fail();
  void offer();
  void send(const PolicyEvent& event);
  void act(const LaunchAction& action);
  void start(int attempt);
  void end_fence();
  void start_by_hand(const LaunchAction& stopped);

  // The truth.
  void count_nodes();
  void expect_fair_verdicts();
  void expect_fair(const Quarantine::Verdict& verdict);
  void expect_true_loss(const std::string& text);
  void expect_mute(const std::string& note);
  void expect_no_silence();

  const int world_;  // nodes of the run
  const int fault_every_, decide_every_;
  std::mt19937_64 random_;
  std::vector<SimulatedNode> nodes_;
  LaunchLayouts layouts_;
  double now_ = 1000;

  int64_t epoch_ = 0;
  std::optional<Tenure> tenure_;
  int num_before_ = 0;  // agents that the last leader heard in its last minute
  double leads_from_s_ = 0, runs_from_s_ = 0;  // the next leader; this one, after a suspension
  std::string quarantine_file_ = "{}";
  std::unique_ptr<FleetDecisions> decisions_;
  std::unique_ptr<Policy> policy_;
  CommittedSteps steps_;
  int attempt_ = 0;
  bool ended_ = true;  // the launch of the leader before this one
  bool lives_ = false, fencing_ = false;
  double next_s_ = 0;  // the attempt's first step, or its end after a save
  double decides_s_ = 0, exchanged_s_ = 0, ordered_s_ = 0, offered_s_ = 0;
  std::optional<double> waits_since_s_;
  double start_at_s_ = 0;  // the end of the back-off

  // Since when there are nodes that can take part: all that the run has, or those of a layout.
  double enough_since_s_ = 0, some_since_s_ = 0;
  std::vector<double> restarts_;
  struct Blame {
    std::string node;
    FaultClass fault;
    double time_s;
  };
  std::vector<Blame> blamed_;
  std::map<std::string, Quarantine::Verdict> verdicts_;
  std::vector<double> verdict_times_;  // of this leader
  int num_shrunk_ = 0, num_grown_ = 0, num_left_ = 0, num_spent_ = 0, num_lost_ = 0,
      num_leaders_ = 0, num_resigned_ = 0, num_suspended_ = 0, num_broken_ = 0, num_slow_ = 0,
      num_mute_ = 0;
};

// --- the world ---

void Cluster::turn() {
  now_ += kTurn_s;
  disturb();
  for (SimulatedNode& node : nodes_) {
    const bool had_ranks = node.has_ranks();
    const int64_t answered = node.report().check.number;
    node.live(now_, random_);
    num_events += had_ranks != node.has_ranks() || answered != node.report().check.number;
  }
  if (!decisions_ && now_ >= leads_from_s_) begin_lead();
  if (!decisions_ || now_ < runs_from_s_) return;
  decisions_->pass(time());
  exchange();
  count_nodes();
  lead();
  disturb_leader();
}

void Cluster::disturb() {
  using Health = SimulatedNode::Health;
  if (happens(150)) {  // most links are there again before anybody misses them
    any_node().cut(now_ + (happens(3) ? between(5, 90) : between(0.5, 4.2)));
    ++num_events;
  }
  if (happens(2000)) {  // a switch
    const double until_s = now_ + between(1, 60);
    const size_t first = random_() % nodes_.size(), width = nodes_.size() / (2 + random_() % 8);
    for (size_t i = 0; i < width; ++i) nodes_[(first + i) % nodes_.size()].cut(until_s);
    num_events += int64_t(width);
  }
  if (happens(1500)) {
    any_node().break_down();
    ++num_events;
  }
  if (happens(3000)) any_node().turn(Health(1 + random_() % 3), now_);
  for (SimulatedNode& node : nodes_) {
    if (!node.is_up() && node.silent_s > 20 && happens(600)) node.come_up();
    if (node.health() != Health::kSound && happens(12'000)) node.turn(Health::kSound, now_);
  }
}

void Cluster::disturb_leader() {
  if (!decisions_) return;
  if (happens(4000)) return lose_leader();
  // A suspension does most harm to checks, and delays them where every decision takes long.
  if (!happens(lives_ ? 500 : 60 * decide_every_)) return;
  const double seconds = between(1, 12);  // another one would lead after 13 s
  runs_from_s_ = now_ + seconds;
  ++num_suspended_;
  if (seconds < Candidacy::kUnheard_s) return;
  for (SimulatedNode& node : nodes_) node.cut(runs_from_s_ + between(0, 1.5));  // agents reconnect
}

// Reports and, once a second, orders.
void Cluster::exchange() {
  const double pause_s = now_ - std::exchange(exchanged_s_, now_);
  const double ran_s = pause_s > FleetDecisions::kAbsent_s ? kTurn_s : pause_s;
  const bool orders = now_ - ordered_s_ >= 1;
  if (orders) ordered_s_ = now_;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    SimulatedNode& node = nodes_[i];
    const bool linked = node.is_linked(now_);
    node.silent_s = linked ? 0 : node.silent_s + ran_s;
    node.linked_s = linked ? node.linked_s + ran_s : 0;
    if (!linked) continue;
    decisions_->hear(int(i) + 1, node.report());
    if (orders) node.obey(decisions_->fence(), decisions_->check_of(node.name()), now_, random_);
  }
}

void Cluster::lose_leader() {
  quarantine_file_ = decisions_->quarantine().to_json().dump();
  num_before_ = decisions_->num_heard(60);
  decisions_.reset();
  leads_from_s_ = now_ + between(Candidacy::kStood_s, Candidacy::kStood_s + 6);
}

// --- the launcher ---

void Cluster::begin_lead() {
  ++epoch_;
  ++num_leaders_;
  tenure_.emplace(epoch_, num_before_, now_);
  const NodeRules rules{.num_nodes = world_,
                        .elastic = Elastic::kFull,
                        .first_check = epoch_ << 32,
                        .patience_s = attempt_ > 0 ? 10.0 : 300.0};
  decisions_ = std::make_unique<FleetDecisions>(
      rules, Quarantine::from_json(parse_json(quarantine_file_, "file", ErrorKind::kCorrupt)),
      attempt_, time());
  decisions_->know(layouts_);
  for (SimulatedNode& node : nodes_) {
    node.forget_leader();
    node.silent_s = node.linked_s = 0;
  }
  const LaunchSpec limits{.restarts_per_hour = kPerHour, .restarts = 1 << 30, .backoff_s = 1};
  policy_ = std::make_unique<Policy>(limits, attempt_ + 1, steps_,
                                     policy_ ? policy_->state() : PolicyState{}, true);
  lives_ = fencing_ = false;
  verdicts_ = decisions_->quarantine().verdicts();
  verdict_times_.clear();
  waits_since_s_.reset();
  enough_since_s_ = some_since_s_ = runs_from_s_ = now_;
  if (!std::exchange(ended_, false))
    send({.kind = EventKind::kTookOver,
          .evidence = {EvidenceKind::kNodeLost, -1, 0, "the leader is gone"},
          .steps = steps_});
}

void Cluster::lead() {
  const int heard = decisions_->num_heard(FleetDecisions::kLost_s);
  if (!tenure_->holds({epoch_, now_, heard, decisions_->num_heard(60)}, now_)) {
    ++num_resigned_;
    return lose_leader();
  }
  if (!lives_)
    form();
  else if (fencing_ && decisions_->is_fenced() && happens(4))  // the starter takes its time
    end_fence();
  else if (!fencing_)
    run();
  if (decisions_) expect_fair_verdicts();
}

void Cluster::form() {
  if (now_ < decides_s_) return;
  decides_s_ = now_ + decide_every_ * kTurn_s;
  const auto begin = Clock::now();
  const std::string missing = decisions_->decide().missing;
  longest_s = std::max(longest_s, seconds_since(begin));
  if (missing.empty()) {
    waits_since_s_.reset();
    return send({EventKind::kTick});
  }
  if (!waits_since_s_) waits_since_s_ = now_;
  EXPECT_LT(now_ - std::max(some_since_s_, start_at_s_), 240) << "it waits for ever: " << missing;
  if (now_ - *waits_since_s_ >= 600)
    send({.kind = EventKind::kTooFewNodes, .evidence = {.text = missing}});
}

void Cluster::run() {
  if (const auto lost = decisions_->take_loss()) {
    expect_true_loss(lost->text);
    ++num_lost_;
    return send({EventKind::kSeen, policy_->attempt(), *lost});
  }
  expect_no_silence();
  if (policy_->phase() == LaunchPhase::kStart && now_ >= next_s_)
    send({EventKind::kFirstStep, policy_->attempt()});
  else if (policy_->phase() == LaunchPhase::kDrain && now_ >= next_s_)
    send({EventKind::kEnded, policy_->attempt(), {EvidenceKind::kExit, 0, 27, "saved"}});
  else if (policy_->phase() == LaunchPhase::kRun && happens(fault_every_))
    fail();
  else if (policy_->phase() == LaunchPhase::kRun && now_ - offered_s_ >= 5)
    offer();
  send({EventKind::kTick});
}

// A rank fails; those of a broken node find that out.
void Cluster::fail() {
  const std::vector<std::string>& nodes = decisions_->nodes();
  int rank = int(random_() % nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    if (node(nodes[i]).health() == SimulatedNode::Health::kBroken) rank = int(i);
  const bool broken = node(nodes[size_t(rank)]).health() == SimulatedNode::Health::kBroken;
  Evidence evidence{EvidenceKind::kExit, rank, 29, "wrong bits"};
  if (!broken && happens(2))
    evidence = {EvidenceKind::kSignal, rank, 9, "killed"};
  else if (!broken)
    evidence = {EvidenceKind::kSuspended, rank, 0, "suspended"};
  send({EventKind::kSeen, policy_->attempt(), evidence});
}

void Cluster::offer() {
  offered_s_ = now_;
  decisions_->check_spares();
  SimulatedNode& slow = node(decisions_->nodes()[random_() % decisions_->nodes().size()]);
  const bool leaves = happens(300);
  const auto move = leaves ? decisions_->leave(slow.name(), 0.2) : decisions_->grow();
  if (!move) return;
  send({EventKind::kMove, policy_->attempt(), {.text = move->text}});
  if (policy_->phase() != LaunchPhase::kDrain) return;
  if (leaves) slow.slow_s = now_;
  ++(leaves ? num_left_ : num_grown_);
  decisions_->leave_out(*move);
}

void Cluster::send(const PolicyEvent& event) {
  for (const LaunchAction& action : policy_->on(event, now_)) act(action);
}

void Cluster::act(const LaunchAction& action) {
  switch (action.kind) {
    case ActionKind::kStart:
      return start(action.attempt);
    case ActionKind::kTerminate:
      next_s_ = now_ + between(1, 5);
      return;
    case ActionKind::kReport: {
      const Cause& cause = policy_->cause();
      if (cause.rank < 0) return;
      const std::string& blamed = decisions_->nodes()[size_t(cause.rank)];
      blamed_.push_back({blamed, cause.fault, now_});
      if (cause.fault == FaultClass::kHardware) node(blamed).guilty_s = now_;
      return decisions_->judge(cause, blamed);
    }
    case ActionKind::kFence:
      fencing_ = true;
      decisions_->begin_fence();
      return;
    case ActionKind::kDecide:
      start_at_s_ = now_ + action.delay_s;
      restarts_.push_back(now_);
      std::erase_if(restarts_, [&](double time_s) { return now_ - time_s >= 3600; });
      EXPECT_LE(restarts_.size(), size_t{kPerHour});
      return;
    case ActionKind::kStop:
      return start_by_hand(action);
  }
}

void Cluster::start(int attempt) {
  EXPECT_FALSE(lives_) << "a start beside an attempt that is not fenced";
  decisions_->start(attempt);
  const std::optional<LaunchLayout>& fewer = decisions_->layout();
  EXPECT_EQ(int(decisions_->nodes().size()), fewer ? fewer->nodes : world_);
  if (fewer) {
    EXPECT_LT(now_ - enough_since_s_, 10) << "it has shrunk to " << fewer->nodes << " nodes";
  }
  for (const std::string& name : decisions_->nodes()) {
    SimulatedNode& chosen = node(name);
    EXPECT_FALSE(chosen.has_ranks()) << "older ranks live on " << name;
    EXPECT_TRUE(chosen.has_passed() || !chosen.is_up()) << name << " was not checked";
    EXPECT_LT(chosen.silent_s, FleetDecisions::kLost_s + 1) << name;
    EXPECT_FALSE(decisions_->quarantine().is_broken(name, time().calendar_s)) << name;
    chosen.start_ranks(attempt);
  }
  num_events += int64_t(decisions_->nodes().size());
  attempt_ = attempt;
  lives_ = true;
  next_s_ = now_ + between(1, 6);
  offered_s_ = now_ + 20;
  ++num_starts;
  num_shrunk_ += fewer.has_value();
}

void Cluster::end_fence() {
  fencing_ = lives_ = false;
  steps_ = {steps_.newest + 20, steps_.newest};  // every attempt makes progress
  send({.kind = EventKind::kFenced, .attempt = policy_->attempt(), .steps = steps_});
}

// A person mends what is broken, forgets the quarantine, and starts the launch again.
void Cluster::start_by_hand(const LaunchAction& stopped) {
  EXPECT_EQ(stopped.exit_code, kSpentExitCode) << stopped.text;
  const bool spent = restarts_.size() >= size_t{kPerHour};
  EXPECT_TRUE(spent || now_ - some_since_s_ < 240) << stopped.text;
  num_spent_ += spent;
  for (SimulatedNode& node : nodes_) {
    node.come_up();
    node.turn(SimulatedNode::Health::kSound, now_);
  }
  restarts_.clear();
  ended_ = true;
  lose_leader();
  quarantine_file_ = "{}";
}

// --- the truth ---

void Cluster::count_nodes() {
  constexpr double kLinked_s = 3;    // it has had an order, and answered
  constexpr double kHealthy_s = 70;  // the leader has forgotten a failed check
  int num_able = 0;
  for (const SimulatedNode& node : nodes_)
    num_able += !lives_ && node.linked_s >= kLinked_s && !node.has_ranks() &&
                node.is_sound(kHealthy_s, now_) &&
                !decisions_->quarantine().is_broken(node.name(), time().calendar_s);
  if (num_able < world_) enough_since_s_ = now_;
  if (num_able < layouts_.all.back().nodes) some_since_s_ = now_;
}

void Cluster::expect_true_loss(const std::string& text) {
  const std::string name = text.substr(text.find(' ') + 1, 5);
  EXPECT_GE(node(name).silent_s, FleetDecisions::kLost_s - 1) << text;
}

// A node of which a note says that it does not answer is one that does not.
void Cluster::expect_mute(const std::string& note) {
  if (note.find("does not answer") == note.npos) return;
  ++num_mute_;
  EXPECT_FALSE(node(note.substr(note.find(' ') + 1, 5)).is_sound(70, now_)) << note;
}

void Cluster::expect_no_silence() {
  for (const std::string& name : decisions_->nodes())
    EXPECT_LT(node(name).silent_s, FleetDecisions::kLost_s + 1) << name << " is not missed";
}

// Every new verdict has a reason in the truth, and its time.
void Cluster::expect_fair_verdicts() {
  const std::vector<std::string> notes = decisions_->take_notes();
  for (const std::string& note : notes) expect_mute(note);
  if (notes.empty()) return;
  for (const auto& [name, verdict] : decisions_->quarantine().verdicts()) {
    Quarantine::Verdict& known = verdicts_[name];
    if (known.strikes == verdict.strikes && known.until_s == verdict.until_s) continue;
    const bool held =
        known.node == name && (known.until_s == 0 || time().calendar_s < known.until_s);
    const bool counted = verdict.cause == name_of(FaultClass::kHang) ||
                         verdict.cause == name_of(FaultClass::kKilled);
    EXPECT_TRUE(!held || counted || known.cause != verdict.cause) << name << " is held already";
    expect_fair(verdict);
    known = verdict;
  }
}

void Cluster::expect_fair(const Quarantine::Verdict& verdict) {
  constexpr double kOnItsWay_s = 200;  // a report, over a broken link and a lost leader
  const SimulatedNode& condemned = node(verdict.node);
  const auto blames = [&](FaultClass fault) {
    return std::ranges::count_if(blamed_, [&](const Blame& blame) {
      return blame.node == verdict.node && blame.fault == fault && now_ - blame.time_s <= 3600;
    });
  };
  if (verdict.cause == name_of(FaultClass::kHardware)) {
    ++num_broken_;
    EXPECT_LT(now_ - condemned.guilty_s, kOnItsWay_s) << verdict.node << ": " << verdict.evidence;
  } else if (verdict.cause == name_of(FaultClass::kHang)) {
    EXPECT_GE(blames(FaultClass::kHang), 2) << verdict.node;
  } else if (verdict.cause == name_of(FaultClass::kKilled)) {
    EXPECT_GE(blames(FaultClass::kKilled), 3) << verdict.node;
  } else {
    ++num_slow_;
    EXPECT_LT(now_ - condemned.slow_s, NodePlacement::kFresh_s + kOnItsWay_s) << verdict.node;
  }
  verdict_times_.push_back(now_);
  const auto lately =
      std::ranges::count_if(verdict_times_, [&](double time_s) { return now_ - time_s < 600; });
  EXPECT_LE(lately, std::max<int64_t>(2, int64_t(nodes_.size()) / 10));
}

void Cluster::expect_variety() const {
  for (const int count : {num_shrunk_, num_grown_, num_left_, num_spent_, num_lost_, num_leaders_,
                          num_resigned_, num_suspended_, num_broken_, num_slow_, num_mute_})
    EXPECT_GT(count, 0);
}

TEST(Cluster, GoesOnWhateverFails) {
  Cluster cluster(3, 64, 56, 200, 1);
  for (int i = 0; i < 10'000 && !testing::Test::HasFailure(); ++i) cluster.turn();
  EXPECT_GT(cluster.num_starts, 40);
}

TEST(Cluster, GoesOnForADay) {
  Cluster cluster(4, 64, 56, 600, 1);
  for (int i = 0; i < 172'800 && !testing::Test::HasFailure(); ++i) cluster.turn();
  EXPECT_GT(cluster.num_starts, 300);
  cluster.expect_variety();
}

TEST(Cluster, GoesOnThroughAMillionEvents) {
  Cluster cluster(5, 4096, 4000, 60, 4);
  while (cluster.num_events < 1'000'000 && !testing::Test::HasFailure()) cluster.turn();
  EXPECT_GT(cluster.num_starts, 50);
  testing::Test::RecordProperty("longest_decision_us", int(1e6 * cluster.longest_s));
}

}  // namespace
}  // namespace ashlar::launch
