// A launch on several machines: who leads, on which nodes an attempt runs, what agents tell.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "ashlar/checkpoint/root/lease.h"
#include "ashlar/core/clock.h"
#include "ashlar/launch/agent_messages.h"
#include "ashlar/launch/by_hand.h"
#include "ashlar/launch/epochs.h"
#include "ashlar/launch/launcher.h"
#include "ashlar/launch/leader.h"
#include "ashlar/launch/node_agent.h"
#include "ashlar/launch/node_choice.h"
#include "ashlar/launch/node_placement.h"
#include "ashlar/launch/policy.h"
#include "ashlar/launch/slurm.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

using testing_support::error_of;
using testing_support::TemporaryDirectory;

PulsePage some_page(int rank) {
  PulsePage page;
  page.rank = rank;
  page.num_ranks = 4;
  page.process = 4711;
  page.attempt = 3;
  page.step = 57;
  page.steps_here = 17;
  page.place = PulsePlace::kReduce;
  page.block = 2;
  page.changed_ns = 5'000'000'000;
  page.waits_for = 9;
  page.groups = {{17, "data", 4, 31}};
  page.operations = {{8, 0, 1, 29, 64, "all_reduce", "norm", 10, 11, 12},
                     {9, 0, 1, 30, 128, "reduce_scatter", "gradients", 20, 21, 0}};
  return page;
}

TEST(AgentMessages, KeepWhatAHangIsFoundBy) {
  AgentReport report{.node = "n07", .asked_to_stop = true, .fenced = 2};
  report.ranks = {{3, 3, 'T', "suspended"}, {4, 3, 'R', "killed", true}};
  report.bytes = 99;
  report.memory_kills = 1;
  report.now_ns = 77;
  report.check = {5, false, "wrong data", 0.25, 11.5};
  report.pages = {{3, some_page(3)}};
  const AgentReport read = parse_report(to_bytes(report));
  EXPECT_EQ(read.node, "n07");
  EXPECT_TRUE(read.asked_to_stop);
  EXPECT_EQ(read.fenced, 2);
  ASSERT_EQ(read.ranks.size(), 2u);
  EXPECT_FALSE(read.ranks[0].killed);
  EXPECT_TRUE(read.ranks[1].killed);
  EXPECT_EQ(read.ranks[0].state, 'T');
  EXPECT_EQ(read.bytes, 99);
  EXPECT_EQ(read.memory_kills, 1);
  EXPECT_EQ(read.ranks[0].trouble, "suspended");
  EXPECT_EQ(read.check, report.check);
  const PulsePage& page = read.pages.at(3);
  EXPECT_EQ(page.step, 57);
  EXPECT_EQ(page.place, PulsePlace::kReduce);
  EXPECT_EQ(page.groups.at(0).name, "data");
  EXPECT_EQ(page.groups.at(0).posted, 31);
  ASSERT_EQ(page.operations.size(), 1u) << "the one that has ended is left out";
  EXPECT_EQ(page.operations[0].label, "gradients");
  ASSERT_TRUE(page.awaited());
  EXPECT_EQ(page.awaited()->number, 30);

  const AgentOrder order = parse_order(to_bytes(AgentOrder{4, 5, 6, {9, true}, true, 27}));
  EXPECT_EQ(order.fence, 4);
  EXPECT_EQ(order.stop, 5);
  EXPECT_EQ(order.place, 6);
  EXPECT_EQ(order.check, (CheckOrder{9, true}));
  EXPECT_TRUE(order.over);
  EXPECT_EQ(order.exit_code, 27);
}

TEST(AgentMessages, DamagedOnesAreErrors) {
  AgentReport report{.node = "n07"};
  report.pages = {{3, some_page(3)}};
  const std::vector<std::byte> whole = to_bytes(report);
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(parse_report(std::span(whole).first(size)), Error) << size;
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {  // whatever it is, it ends
    std::vector<std::byte> damaged = whole;
    damaged[random() % damaged.size()] = std::byte(random());
    try {
      parse_report(damaged);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kComm);
    }
  }
}

TEST(ChooseNodes, KeepsThoseOfTheLastAttempt) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(choose_nodes({"d", "b", "a", "c"}, {}, 2), (Names{"a", "b"}));
  EXPECT_EQ(choose_nodes({"d", "a", "c"}, {"d", "b"}, 2), (Names{"a", "d"}));
  EXPECT_EQ(choose_nodes({"d", "a", "c"}, {"d", "c"}, 2), (Names{"c", "d"}));
  EXPECT_TRUE(choose_nodes({"d"}, {"d", "c"}, 2).empty());
}

Cause cause_of(FaultClass fault) {
  Cause cause;
  cause.fault = fault;
  cause.text = "what was seen";
  return cause;
}

TEST(Quarantine, LastsLongerEachTime) {
  constexpr double kHour_s = 3600;
  Quarantine quarantine;
  double now = 1e9;
  const auto expect_term = [&](double term_s) {
    const auto verdict = quarantine.count("v1", cause_of(FaultClass::kHardware), 100, now);
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->until_s, term_s == 0 ? 0 : now + term_s);
    EXPECT_TRUE(quarantine.holds("v1", now));
    EXPECT_EQ(quarantine.holds("v1", now + 7 * kHour_s), term_s == 0);
    now += 7 * kHour_s;
  };
  expect_term(kHour_s);
  expect_term(6 * kHour_s);
  expect_term(0);
  EXPECT_FALSE(quarantine.holds("v2", now));
  const Json text = parse_json(quarantine.to_json().dump(), "text", ErrorKind::kCorrupt);
  const Quarantine read = Quarantine::from_json(text);
  EXPECT_TRUE(read.holds("v1", now));
  EXPECT_EQ(read.verdicts().at("v1").strikes, 3);
}

TEST(Quarantine, NeedsRepeatedFaultsAndNotTooManyNodes) {
  Quarantine quarantine;
  const Cause killed = cause_of(FaultClass::kKilled), crash = cause_of(FaultClass::kCrash);
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 0));
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 10));
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 4000)) << "the first two are over an hour old";
  EXPECT_FALSE(quarantine.count("v1", killed, 100, 4010));
  EXPECT_TRUE(quarantine.count("v1", killed, 100, 4020));
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(quarantine.count("v2", crash, 100, 5000));
  EXPECT_FALSE(quarantine.count("", cause_of(FaultClass::kHardware), 100, 5000));
  int num_held = 0;
  for (int i = 0; i < 30; ++i)
    num_held +=
        quarantine.count("w" + std::to_string(i), cause_of(FaultClass::kHardware), 100, 6000 + i)
            .has_value();
  EXPECT_EQ(num_held, 10) << "a tenth of the nodes within ten minutes";
}

TEST(Candidacy, WaitsForACounterThatStands) {
  Candidacy candidacy;
  EXPECT_TRUE(candidacy.may_lead({.epoch = 0}, 100));
  EXPECT_TRUE(candidacy.may_lead({.epoch = 3, .ended = true}, 100));
  EXPECT_FALSE(candidacy.may_lead({4, "0", false, 200, 2}, 199));
  EXPECT_FALSE(candidacy.has_seen_life()) << "its counter may stand for good";
  double now = 200;
  for (int beat = 0; beat < 30; ++beat, now += 1)
    EXPECT_FALSE(candidacy.may_lead({4, std::to_string(beat), false, 200, 2}, now))
        << "this agent is cut off, and the leader lives";
  EXPECT_TRUE(candidacy.has_seen_life());
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, 200, 2}, now + 8));
  EXPECT_TRUE(candidacy.may_lead({4, "29", false, 200, 2}, now + 9.1));
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, now + 8, 2}, now + 9.1)) << "it was heard";
  candidacy.resigned();
  EXPECT_FALSE(candidacy.may_lead({4, "29", false, 200, 2}, now + 15));
  EXPECT_TRUE(candidacy.may_lead({4, "29", false, 200, 2}, now + 19.1));
}

TEST(Tenure, EndsOnTheWrongSideOfABrokenNetwork) {
  const Tenure tenure(3);
  EXPECT_TRUE(tenure.holds({3, 100, 2, 4}, 110));
  EXPECT_FALSE(tenure.holds({4, 100, 4, 4}, 110)) << "a newer epoch";
  EXPECT_FALSE(tenure.holds({3, 100, 4, 4}, 121)) << "it cannot write its counter";
  EXPECT_FALSE(tenure.holds({3, 100, 1, 4}, 110)) << "it hears fewer than half";
}

TEST(EpochFiles, HaveOneLeaderEach) {
  const auto files = memory_files();
  files->make_directories("launch");
  EpochFiles one(*files, "launch"), two(*files, "launch");
  EXPECT_EQ(one.newest(), 0);
  EXPECT_TRUE(one.claim(1, "17"));
  EXPECT_FALSE(two.claim(1, "17"));
  EXPECT_EQ(two.newest(), 1);
  EXPECT_EQ(two.job_of(1), "17");
  EXPECT_EQ(two.beat_of(1), "");
  one.beat(1);
  const std::string first = two.beat_of(1);
  one.beat(1);
  EXPECT_NE(two.beat_of(1), first);
  EXPECT_FALSE(two.address_of(1));
  one.publish(1, "n07 4711 10.0.0.7");
  EXPECT_EQ(two.address_of(1), "n07 4711 10.0.0.7");
  EXPECT_FALSE(two.end_of(1));
  one.end(1, 27);
  EXPECT_EQ(two.end_of(1), 27);
}

// Launchers that nothing but the directory numbers.
TEST(EpochFiles, NumberNodesAndKnowTheLastEnd) {
  const auto files = memory_files();
  files->make_directories("launch");
  EpochFiles epochs(*files, "launch");
  EXPECT_EQ(epochs.number_of("n07"), 1);
  EXPECT_EQ(epochs.number_of("n03"), 2);
  EXPECT_EQ(epochs.number_of("n07"), 1);
  EXPECT_EQ(epochs.last_ended(), 0);
  for (const int epoch : {1, 2, 3}) epochs.claim(epoch, "one");
  EXPECT_EQ(epochs.last_ended(), 0);
  epochs.end(2, 0);
  EXPECT_EQ(epochs.last_ended(), 2) << "epoch 3 has begun since";
}

TEST(EpochFiles, KeysComeFromATokenOfTheOwner) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  const std::string path = directory.path();
  EpochFiles one(*files, path), two(*files, path);
  EXPECT_EQ(one.key_of(1, "17"), two.key_of(1, "17"));
  EXPECT_NE(one.key_of(1, "17"), one.key_of(1, "18")) << "another job is a stranger";
  EXPECT_NE(one.key_of(1, "17"), one.key_of(2, "17"));
  const std::string token = join(path, "token");
  struct stat info {};
  ASSERT_EQ(stat(token.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(files->list(path).size(), 1u);
  chmod(token.c_str(), 0644);
  EXPECT_NE(error_of(ErrorKind::kLaunch, [&] { two.key_of(1, "17"); }).find("owner alone"),
            std::string::npos);
}

// --- two or more candidates, in any order of their steps ---

// A process that stands for the lead and, once it has it, starts ranks that take the lease.
struct Contender {
  Candidacy candidacy;
  std::optional<Tenure> tenure;
  int64_t epoch = 0, attempt = 0;
  double written_s = 0, heard_s = 0, asleep_until_s = 0;
};

struct Contest {
  explicit Contest(uint64_t seed) : random(seed) {
    files->make_directories("launch");
    files->make_directories("root");
  }
  int below(int bound) { return int(random() % uint64_t(bound)); }

  void turn(size_t which) {
    Contender& one = contenders[which];
    if (now < one.asleep_until_s) return;
    if (below(200) == 0) one.asleep_until_s = now + below(60);  // suspended, anywhere below
    EpochFiles epochs(*files, "launch");
    const int64_t newest = epochs.newest();
    if (!one.tenure) {
      const bool hears = newest > 0 && below(3) > 0 && leads(newest);
      if (hears) one.heard_s = now;
      const Candidacy::View view{newest, newest > 0 ? epochs.beat_of(newest) : "", false,
                                 one.heard_s, int(which)};
      if (!one.candidacy.may_lead(view, now) || !epochs.claim(newest + 1, "17")) return;
      EXPECT_TRUE(winners.insert(newest + 1).second) << "two leaders of one epoch";
      one.tenure.emplace(newest + 1);
      one.epoch = newest + 1;
      one.written_s = now;
      return;
    }
    if (!one.tenure->holds({newest, one.written_s, 1, 1}, now)) {
      one.tenure.reset();
      return;
    }
    if (below(4) > 0) beat(one);
    if (below(8) == 0) start(one);
  }

  bool leads(int64_t epoch) const {
    return std::ranges::any_of(contenders, [&](const Contender& one) {
      return one.tenure && one.epoch == epoch && now >= one.asleep_until_s;
    });
  }
  void beat(Contender& one) {
    const std::string path = "launch/epoch-" + std::to_string(one.epoch) + "/beat";
    write_text(*files, path, std::to_string(++beats));
    one.written_s = now;
  }
  // The ranks come to the lease later: `pending`.
  void start(Contender& one) {
    checkpoint::LeaseHolder rank;  // on a machine of its own, from where no other is judged
    rank.host = rank.boot = fmt::format("host {}", ++num_ranks);
    rank.pid = 7;
    rank.epoch = one.epoch;
    rank.attempt = ++one.attempt;
    pending.push_back(rank);
  }
  // The ranks of an attempt come to the checkpoints; a holder that lives renews its lease.
  void take_lease() {
    if (pending.empty()) return;
    const size_t which = random() % pending.size();
    checkpoint::LeaseOptions options;
    options.holder = pending[which];
    options.sleep = [&](double) { leases.back()->refresh(); };
    pending.erase(pending.begin() + std::ptrdiff_t(which));
    try {
      leases.push_back(std::make_unique<checkpoint::Lease>(*files, "root", log, options));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
      return;
    }
    const checkpoint::LeaseHolder& me = leases.back()->holder();
    EXPECT_TRUE(writers.empty() || std::pair(me.epoch, me.attempt) > *writers.rbegin())
        << "a rank that was replaced writes again";
    writers.emplace(me.epoch, me.attempt);
    for (size_t i = 0; i + 1 < leases.size(); ++i) {
      EXPECT_FALSE(leases[i]->fence().open()) << "two writers";
      EXPECT_THROW(leases[i]->check(), Error);
    }
    if (leases.size() > 3) leases.erase(leases.begin());
  }

  std::mt19937_64 random;
  std::unique_ptr<FileSystem> files = memory_files();
  std::vector<Contender> contenders{2};
  std::vector<checkpoint::LeaseHolder> pending;
  Log log{[](std::string_view) {}};
  std::vector<std::unique_ptr<checkpoint::Lease>> leases;  // the last one is held
  std::set<int64_t> winners;                               // epochs
  std::set<std::pair<int64_t, int64_t>> writers;           // that have held the lease
  int64_t beats = 0, num_ranks = 0;
  double now = 0;
};

// Steps of the contenders and of the ranks come in any order, with any pauses between them.
void hold_contests(int num_contests) {
  int64_t num_epochs = 0;
  for (int seed = 0; seed < num_contests && !testing::Test::HasFailure(); ++seed) {
    Contest contest(uint64_t(seed) + 1);
    for (int step = 0; step < 400; ++step) {
      if (contest.below(3) == 0)
        contest.take_lease();
      else
        contest.turn(size_t(contest.below(2)));
      contest.now += 0.5 * contest.below(4);
    }
    EXPECT_FALSE(contest.winners.empty());
    num_epochs += int64_t(contest.winners.size());
  }
  EXPECT_GT(num_epochs, num_contests * 3 / 2) << "the lead changes hands";
}

TEST(Contest, NeverHasTwoWriters) {
  hold_contests(8);
}

TEST(Contest, NeverHasTwoWritersInTenThousand) {
  hold_contests(10'000);
}

// --- the decisions about a large cluster ---

// Nodes are lost and come back, fail their checks, are slow; ranks fail; Policy, Quarantine and
// NodePlacement answer.  A person starts again what has spent its budget.
struct Cluster {
  static constexpr int kNodes = 4096, kWorld = 4000, kPerHour = 10;
  // calm: events between two faults, in the mean.
  Cluster(uint64_t seed, int calm) : calm(calm), random(seed) {
    for (int i = 0; i < kNodes; ++i) up.insert("n" + std::to_string(1000 + i));
    LaunchLayouts layouts;
    for (const int nodes : {kWorld, 3968, 3840, 3584, 3072, 2048})
      layouts.all.push_back({.nodes = nodes, .step_s = 4000.0 / nodes});
    placement.know(layouts);
  }
  int below(int bound) { return int(random() % uint64_t(bound)); }

  std::vector<NodeView> views() const {
    std::vector<NodeView> nodes;
    for (const std::string& name : up) {
      const bool busy = lives && std::ranges::binary_search(placement.nodes(), name);
      nodes.push_back({name, !busy, quarantine.holds(name, now), quarantine.is_broken(name, now)});
    }
    return nodes;
  }
  void form() {
    if (!changed && now - decided_s < 30) {
      if (next.missing.empty()) send({EventKind::kTick});
      return;
    }
    const auto begin = Clock::now();
    next = placement.decide(views(), now);
    longest_s = std::max(longest_s, seconds_since(begin));
    decided_s = now;
    changed = false;
    for (const NodePlacement::Failure& slow : placement.take_slow()) leave_out(slow);
    EXPECT_LT(now - since_s, 3600) << "it waits for ever: " << next.missing;
    if (next.missing.starts_with("checks"))
      answer_checks();
    else if (next.missing.empty())
      send({EventKind::kTick});
  }
  void answer_checks() {
    changed = true;
    for (const std::string& name : up) {
      CheckResult result{placement.check_of(name).number, true, "", 1, 10};
      if (result.number == 0) continue;
      const int chance = below(3000);
      if (chance == 0) result.passed = false;
      result.sure = below(2) == 0;
      if (chance == 1) result.memory_rate = 8;
      if (const auto failure = placement.take(name, result, now)) leave_out(*failure);
    }
  }
  void leave_out(const NodePlacement::Failure& failure) {
    changed = true;
    num_failed += failure.broken;
    num_slow += !failure.broken;
    quarantine.leave_out(failure.node, failure.broken ? name_of(FaultClass::kHardware) : "slow",
                         failure.evidence, kNodes, now);
    if (quarantine.verdicts().size() > 1500) quarantine = {};  // somebody has looked at the nodes
  }
  void heal() {
    for (size_t left = (down.size() + 3) / 4; left > 0; --left) {
      const auto node = std::next(down.begin(), below(int(down.size())));
      up.insert(*node);
      down.erase(node);
    }
    changed = true;
  }
  void lose(const std::string& node) {
    if (up.size() > 2100 && up.erase(node)) down.insert(node);
    changed = true;
  }
  void fail() {
    const std::vector<std::string>& nodes = placement.nodes();
    blamed = nodes[size_t(below(int(nodes.size())))];
    constexpr EvidenceKind kKinds[] = {EvidenceKind::kNodeLost, EvidenceKind::kSuspended,
                                       EvidenceKind::kSignal, EvidenceKind::kExit};
    const EvidenceKind kind = kKinds[below(4)];
    if (kind == EvidenceKind::kNodeLost)  // a switch takes some hundred with it, now and then
      for (int others = below(8) == 0 ? below(600) : 0; others >= 0; --others)
        lose(nodes[size_t(below(int(nodes.size())))]);
    const int value = kind == EvidenceKind::kSignal ? 9 : 29;
    send({EventKind::kSeen, policy.attempt(), {kind, 1, value, "seen on " + blamed}});
  }
  void offer() {
    const std::vector<NodeView> nodes = views();
    placement.check_spares(nodes, now);
    answer_checks();
    const bool slow = below(4) == 0;
    const auto move =
        slow ? placement.leave(placement.nodes()[0], 0.2, nodes, now) : placement.grow(nodes, now);
    if (!move) return;
    send({EventKind::kMove, policy.attempt(), {.text = move->text}});
    if (policy.phase() == LaunchPhase::kDrain && slow) leave_out({move->from_node, move->text});
  }
  void send(const PolicyEvent& event) {
    for (const LaunchAction& action : policy.on(event, now)) {
      if (action.kind == ActionKind::kReport) {
        quarantine.count(blamed, policy.cause(), kNodes, now);
        placement.suspect(blamed);
      } else if (action.kind == ActionKind::kFence) {
        fence = true;
      } else if (action.kind == ActionKind::kTerminate) {
        ++num_moves;
      } else if (action.kind == ActionKind::kDecide) {
        restarts.push_back(now);
        EXPECT_LE(std::ranges::count_if(restarts, [&](double t) { return now - t < 3600; }),
                  kPerHour);
      } else if (action.kind == ActionKind::kStop) {
        start_by_hand(action);
      } else if (action.kind == ActionKind::kStart) {
        start();
      }
    }
  }
  void start() {
    EXPECT_FALSE(lives) << "a start beside an attempt that is not fenced";
    EXPECT_EQ(next.missing, "");
    EXPECT_EQ(int(next.nodes.size()), next.layout ? next.layout->nodes : kWorld);
    for (const std::string& name : next.nodes)
      if (!up.contains(name) || quarantine.is_broken(name, now)) ADD_FAILURE() << name;
    placement.start(next);
    lives = true;
    ++num_starts;
    num_shrunk += next.layout.has_value();
  }
  void start_by_hand(const LaunchAction& stopped) {
    EXPECT_EQ(stopped.exit_code, kSpentExitCode) << stopped.text;
    EXPECT_GE(std::ranges::count_if(restarts, [&](double t) { return now - t < 3600; }), kPerHour);
    policy = Policy(kLimits, policy.attempt() + 1, steps, {}, true);
    restarts.clear();
    ++num_spent;
  }
  void end_fence() {
    fence = lives = false;
    changed = true;
    since_s = now;
    steps = {steps.newest + 20, steps.newest};  // every attempt makes progress
    send({.kind = EventKind::kFenced, .attempt = policy.attempt(), .steps = steps});
  }
  void step() {
    now += 1200.0 / calm * below(2);  // a fault in 10 minutes
    const int chance = below(calm);
    if (fence && chance < calm / 2) return end_fence();
    if (chance == calm - 1) return heal();
    if (chance == calm - 2) return lose(*std::next(up.begin(), below(int(up.size()))));
    if (!lives) return form();
    if (fence) return;
    if (policy.phase() == LaunchPhase::kDrain && chance < calm / 4)
      return send({EventKind::kEnded, policy.attempt(), {EvidenceKind::kExit, 0, 27, "saved"}});
    if (policy.phase() == LaunchPhase::kStart && chance < calm / 2)
      return send({EventKind::kFirstStep, policy.attempt()});
    if (chance == 0) return fail();
    if (chance < 5) return offer();
    send({EventKind::kTick});
  }

  const int calm;
  static constexpr LaunchSpec kLimits{
      .restarts_per_hour = kPerHour, .restarts = 1 << 30, .backoff_s = 1};
  std::mt19937_64 random;
  std::set<std::string> up, down;
  Policy policy{kLimits, 1, {}, {}, true};
  Quarantine quarantine;
  NodePlacement placement{{.num_nodes = kWorld, .elastic = Elastic::kFull}, 1e9};
  NodePlacement::Decision next;
  CommittedSteps steps;
  std::string blamed;
  std::vector<double> restarts;
  double now = 1e9, since_s = 1e9, decided_s = 0, longest_s = 0;
  int num_starts = 0, num_shrunk = 0, num_moves = 0, num_failed = 0, num_slow = 0, num_spent = 0;
  bool lives = false, fence = false, changed = true;
};

void simulate_cluster(int num_events, int calm) {
  Cluster cluster(3, calm);
  for (int i = 0; i < num_events && !testing::Test::HasFailure(); ++i) cluster.step();
  EXPECT_GT(cluster.num_starts, num_events / calm / 2) << "it goes on starting";
  EXPECT_GT(cluster.num_failed, 0);
  EXPECT_GT(cluster.num_slow, 0);
  if (num_events >= 100'000) {
    EXPECT_GT(cluster.num_shrunk, 10);
    EXPECT_GT(cluster.num_moves, 10);
    EXPECT_GT(cluster.num_spent, 0);
  }
  testing::Test::RecordProperty("starts", cluster.num_starts);
  testing::Test::RecordProperty("shrunk", cluster.num_shrunk);
  testing::Test::RecordProperty("moves", cluster.num_moves);
  testing::Test::RecordProperty("spent", cluster.num_spent);
  testing::Test::RecordProperty("longest_decision_us", int(1e6 * cluster.longest_s));
}

TEST(Cluster, GoesOnWhateverFails) {
  simulate_cluster(1000, 200);
}

TEST(Cluster, GoesOnThroughAMillionEvents) {
  simulate_cluster(1'000'000, 4000);
}

// --- an agent, its leader and an attempt, over the loopback ---

TEST(Slurm, StartsRanksOnChosenNodes) {
  const std::vector<std::string> words = srun_words("17", {"v1", "v3"}, 4, 16);
  EXPECT_NE(std::ranges::find(words, "--nodelist=v1,v3"), words.end());
  EXPECT_NE(std::ranges::find(words, "--ntasks=8"), words.end());
  EXPECT_NE(std::ranges::find(words, "--cpus-per-task=4"), words.end());
  EXPECT_NE(std::ranges::find(words, "--jobid=17"), words.end());
}

// Has its ranks on this machine, and is asked before every start.
class AskedFleet : public Fleet {
 public:
  int64_t epoch() const override { return 1; }
  bool lead(double) override { return true; }
  std::string lost_leader() override { return ""; }
  bool is_newest() override { return true; }
  bool asked_to_stop() const override { return false; }
  std::string missing(double) override {
    asked_ = true;
    return "";
  }
  std::unique_ptr<Attempt> start(const AttemptCommand& command, int, RankSocket& socket) override {
    EXPECT_TRUE(std::exchange(asked_, false)) << "a start on nodes of an earlier decision";
    ++num_starts;
    return std::make_unique<LocalAttempt>(command, socket);
  }
  const std::optional<LaunchLayout>& fewer_nodes() const override { return none_; }
  void judge(const Cause&, double) override {}
  std::optional<NodePlacement::Move> move(int, double, double) override { return std::nullopt; }
  void leave_out(const NodePlacement::Move&) override {}
  std::vector<std::string> take_notes() override { return {}; }
  void end(int) override {}
  int num_starts = 0;

 private:
  bool asked_ = false;
  std::optional<LaunchLayout> none_;
};

TEST(Launcher, AsksForNodesBeforeEveryStart) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  Log log([](std::string_view) {});
  const std::string run = directory.path(), once = "cd " + run + "; [ -e tried ] && exit 0; ";
  AskedFleet fleet;
  LaunchPlan plan;
  plan.run_directory = run;
  plan.checkpoints = join(run, "checkpoints");
  plan.command = [&](std::optional<int64_t>, double) {
    return AttemptCommand{{"/bin/sh", "-c", once + "touch tried; exit 70"}};
  };
  plan.fleet = &fleet;
  EXPECT_EQ(run_launch(plan, *files, log).exit_code, 0);
  EXPECT_EQ(fleet.num_starts, 2);
}

TEST(ByHand, StartsRanksOnChosenNodes) {
  const std::string words = fmt::format("{}", fmt::join(mpirun_words({"a", "b"}, 4), " "));
  EXPECT_NE(words.find("--host a:4,b:4 "), words.npos) << words;
  EXPECT_NE(words.find("-x ASHLAR_EPOCH "), words.npos) << words;
  EXPECT_TRUE(words.ends_with(" -n 8")) << words;
  const std::string here = fmt::format("{}", fmt::join(mpirun_words({}, 4), " "));
  EXPECT_EQ(here.find("--host"), here.npos) << here;
  EXPECT_TRUE(here.ends_with(" -n 4")) << here;
}

// The run is a shell command that fails once and then ends well.
TEST(NodeAgent, LeadsARunToItsEnd) {
  const TemporaryDirectory directory;
  const auto files = posix_files();
  Log log([](std::string_view) {});
  const std::string run = directory.path();
  const std::string script = "cd " + run + "; [ -e tried ] && exit 0; touch tried; exit 70";
  const auto lead = [&](int64_t epoch) {
    FleetSpec fleet{.epoch = epoch, .directory = join(run, "launch")};
    fleet.limits.preflight = false;
    fleet.starter = [](const auto& nodes, int) {
      const bool right = nodes == std::vector<std::string>{"here"};
      return std::vector<std::string>{right ? "/bin/sh" : "/bin/false", "-c"};
    };
    Leader leader(fleet, *files, log);
    const LaunchPlan plan{
        {},     run, join(run, "checkpoints"),
        "",     0,   [&](std::optional<int64_t>, double) { return AttemptCommand{{script}}; },
        &leader};
    return run_launch(plan, *files, log).exit_code;
  };
  EXPECT_EQ(run_agent({.run_directory = run, .node = "here", .lead = lead}, *files, log), 0);
  const std::string events = read_text(*files, join(run, "launch/events.jsonl"));
  EXPECT_NE(events.find("\"event\":\"fault\""), std::string::npos) << events;
  EXPECT_EQ(EpochFiles(*files, join(run, "launch")).end_of(1), 0);
}

}  // namespace
}  // namespace ashlar::launch
