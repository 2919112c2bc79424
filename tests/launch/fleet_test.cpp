// A launch on several machines: the messages of agents, the programs that start ranks, and an agent
// that leads a run to its end.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ashlar/launch/agent_messages.h"
#include "ashlar/launch/by_hand.h"
#include "ashlar/launch/epochs.h"
#include "ashlar/launch/launcher.h"
#include "ashlar/launch/leader.h"
#include "ashlar/launch/node_agent.h"
#include "ashlar/launch/slurm.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::launch {
namespace {

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

  const AgentOrder order = parse_order(to_bytes(AgentOrder{4, 5, 6, 7, {9, true}, true, 27}));
  EXPECT_EQ(order.fence, 4);
  EXPECT_EQ(order.stop, 5);
  EXPECT_EQ(order.place, 6);
  EXPECT_EQ(order.num_recent, 7);
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
  const auto lead = [&](int64_t epoch, int) {
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
