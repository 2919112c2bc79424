// The state of a run from facts made by hand, and from what a real run shows and leaves.
#include "ashlar/train/run_status.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/train/start.h"
#include "tests/train/tiny_run.h"

namespace ashlar::train {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// Two ranks that have done step 57 of 400 and changed a second ago.
RunFacts living_facts() {
  RunFacts facts;
  facts.now_ns = 1000 * kSecondNs;
  for (const int rank : {0, 1}) {
    PulsePage page;
    page.rank = rank;
    page.num_ranks = 2;
    page.process = 100 + rank;
    page.step = 57;
    page.steps_here = 5;
    page.place = PulsePlace::kBackward;
    page.block = 3;
    page.changed_ns = facts.now_ns - kSecondNs;
    page.groups = {{1, "data", 2, 114}};
    facts.pages[rank] = page;
  }
  facts.num_steps = 400;
  facts.step = 56;
  facts.step_s = facts.longest_step_s = 0.5;
  facts.tokens_per_s = 6600;
  facts.loss = 5.118;
  return facts;
}

void let_wait(PulsePage& page) {
  page.operations = {{.order = 7,
                      .group = 0,
                      .lane = 1,
                      .number = 114,
                      .bytes = 64,
                      .op = "reduce_scatter",
                      .label = "gradients",
                      .queued_ns = page.changed_ns,
                      .started_ns = page.changed_ns}};
  page.groups[0].posted = 115;
  page.waits_for = 7;
  page.waiting_ns = page.changed_ns;
}

TEST(RunStatus, RanksThatMoveRun) {
  const RunStatus status = judge(living_facts());
  EXPECT_EQ(status.state, RunState::kRunning);
  EXPECT_EQ(exit_code(status.state), 0);
  EXPECT_EQ(status_text(status),
            "running\n"
            "step 57 of 400: 0.5 s a step, 6,600 tokens/s, loss 5.1180, 2m52s left\n"
            "ranks 0, 1: backward of block 3, step 58 (changed 1.0 to 1.0 s ago)");
}

TEST(RunStatus, RanksThatStandNameTheCause) {
  RunFacts facts = living_facts();
  let_wait(facts.pages[0]);
  facts.now_ns += 13 * kSecondNs;
  const RunStatus status = judge(facts);
  EXPECT_EQ(status.state, RunState::kNoHeartbeat);
  EXPECT_EQ(exit_code(status.state), 5);
  EXPECT_EQ(status.hang,
            "rank 1 did not come to reduce_scatter 'gradients' (number 114 of data), silent 14 s "
            "in backward of block 3; rank 0 waits");
  const std::string text = status_text(status);
  EXPECT_NE(text.find("rank 0: backward of block 3, step 58; waits for reduce_scatter "
                      "'gradients' number 114 of data (changed 14.0 s ago)\n"),
            std::string::npos)
      << text;
  facts.launcher_lives = true;
  EXPECT_EQ(judge(facts).state, RunState::kRecovering);
  EXPECT_EQ(exit_code(RunState::kRecovering), 3);
}

TEST(RunStatus, SlowStepsMayStandLonger) {
  RunFacts facts = living_facts();
  facts.now_ns += 50 * kSecondNs;
  EXPECT_EQ(judge(facts).state, RunState::kNoHeartbeat);
  facts.longest_step_s = 7;
  EXPECT_EQ(judge(facts).state, RunState::kRunning);
  facts.longest_step_s = 0.1;
  for (auto& [rank, page] : facts.pages) page.steps_here = 0;
  EXPECT_EQ(judge(facts).state, RunState::kRunning);
  facts.now_ns += 100 * kSecondNs;
  EXPECT_EQ(judge(facts).state, RunState::kNoHeartbeat);
}

TEST(RunStatus, AKilledRankIsGone) {
  RunFacts facts = living_facts();
  facts.gone = {1};
  RunStatus status = judge(facts);
  EXPECT_EQ(status.state, RunState::kNoHeartbeat);
  EXPECT_EQ(status.reason, "rank 1 is gone without a word: killed, or out of memory");
  facts.gone = {0, 1};
  status = judge(facts);
  EXPECT_EQ(status.state, RunState::kNoHeartbeat);
  EXPECT_NE(status_text(status).find("ranks 0, 1: gone; was in backward of block 3"),
            std::string::npos);
}

TEST(RunStatus, WithoutRanksTheFilesTell) {
  RunFacts facts = living_facts();
  facts.pages.clear();
  EXPECT_EQ(judge(facts).state, RunState::kStopped);
  EXPECT_EQ(exit_code(RunState::kStopped), 4);
  facts.machines = {"n02"};
  EXPECT_EQ(judge(facts).state, RunState::kNoHeartbeat);
  facts.machines.clear();
  facts.launch_event = "action";
  EXPECT_EQ(judge(facts).state, RunState::kNoHeartbeat);
  facts.launcher_lives = true;
  EXPECT_EQ(judge(facts).state, RunState::kRecovering);
  facts.launcher_lives = false;
  facts.launch_event = "stop";
  facts.launch_action = "stopped with 23";
  EXPECT_EQ(judge(facts).state, RunState::kStopped);
  EXPECT_EQ(judge(facts).reason, "stopped with 23");
  facts.step = 400;
  EXPECT_EQ(judge(facts).state, RunState::kDone);
}

// A launch that gave up months ago says nothing about a later start without a launcher.
TEST(RunStatus, ALaterStartCountsMoreThanALaunch) {
  RunFacts facts = living_facts();
  facts.gone = {0, 1};
  facts.launch_event = "stop";
  EXPECT_EQ(judge(facts).state, RunState::kNoHeartbeat);
  for (auto& [rank, page] : facts.pages) page.attempt = 3;
  EXPECT_EQ(judge(facts).state, RunState::kStopped);
}

TEST(RunStatus, TextTellsEventsAndGoodputInWords) {
  RunFacts facts = living_facts();
  facts.events = {R"({"v":1,"mono":2.5,"attempt":1,"event":"fault","class":"killed","rank":1,)"
                  R"("detect_s":0.279,"evidence":[{"kind":"gone","text":"process 42 is gone"}]})",
                  R"({"event":"fault","evidence":[{"kind":"gone","text":"process 42 is gone"},)"
                  R"({"kind":"exit","text":"no space left"}]})"};
  facts.launch_goodput = R"({"detect":1.0,"useful":3.0,"evaluate":0.0})";
  const std::string text = status_text(judge(facts));
  EXPECT_THAT(
      text, testing::HasSubstr("\nattempt 1: fault, killed, rank 1, detect_s 0.279, process 42 is "
                               "gone"));
  EXPECT_THAT(text, testing::HasSubstr("\nfault, no space left"));
  EXPECT_THAT(text, testing::HasSubstr("\ngoodput: useful 75.0 %, detect 25.0 %\n"));
}

TEST(RunStatus, JsonHasAllOfIt) {
  RunFacts facts = living_facts();
  let_wait(facts.pages[0]);
  facts.pages[1].place = PulsePlace::kEvaluate;
  facts.pages[1].done = 3;
  facts.pages[1].total = 8;
  facts.loss = std::nan("");
  facts.events = {R"({"event":"resume","step":40})"};
  facts.gone = {1};
  facts.held = {{0, 'D'}};
  const Json json = Json::parse(status_json(judge(facts)));
  EXPECT_EQ(json.at("v"), 1);
  EXPECT_EQ(json.at("state"), "no_heartbeat");
  EXPECT_EQ(json.at("step"), 57);
  EXPECT_EQ(json.at("num_steps"), 400);
  EXPECT_EQ(json.at("saved_step"), -1);
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_TRUE(json.at("goodput").is_null());
  EXPECT_TRUE(json.at("left_s").is_null());
  EXPECT_EQ(json.at("events").at(0).at("step"), 40);
  const Json& waiting = json.at("ranks").at(0);
  EXPECT_EQ(waiting.at("waits_for").at("op"), "reduce_scatter");
  EXPECT_EQ(waiting.at("waits_for").at("number"), 114);
  EXPECT_EQ(waiting.at("waits_for").at("group"), "data");
  EXPECT_DOUBLE_EQ(waiting.at("silent_s").get<double>(), 1.0);
  EXPECT_EQ(waiting.at("micro_batch"), -1);
  EXPECT_EQ(waiting.at("held"), "D");
  const Json& gone = json.at("ranks").at(1);
  EXPECT_EQ(gone.at("alive"), false);
  EXPECT_TRUE(gone.at("held").is_null());
  EXPECT_EQ(gone.at("place"), "evaluate");
  EXPECT_EQ(gone.at("total"), 8);
  EXPECT_TRUE(gone.at("waits_for").is_null());
}

TEST(RunStatus, OtherDirectoriesAreNoRuns) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  for (const std::string& path : {root.path().string(), (root / "absent").string()}) try {
      read_facts(*files, path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    }
}

TEST(RunStatus, GoodputIsOfTheLastEndOnly) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  files->make_directories(root / "launch");
  std::ofstream(root / "recipe.toml") << "";
  std::ofstream events(root / "launch/events.jsonl");
  events << R"({"attempt":1,"event":"stop","goodput":{"useful":3.0}})" << std::endl;
  EXPECT_EQ(read_facts(*files, root.path()).launch_goodput, R"({"useful":3.0})");
  events << R"({"attempt":2,"event":"start"})" << std::endl;
  EXPECT_EQ(read_facts(*files, root.path()).launch_goodput, "");
}

// The log is written on the threads of a run that trains: what it shows at its step lines.
TEST(RunStatus, ARunShowsWhereItsRanksAre) {
  const auto files = posix_files();
  const TemporaryDirectory root;
  const std::string run = root / "run";
  const Recipe recipe =
      tiny_run(*files, root, {"train.log_every=1", "train.steps=6", "checkpoint.every=3"});
  std::vector<RunStatus> seen;
  Log log([&](std::string_view line) {
    if (line.find("     4/6  loss") != line.npos) seen.push_back(judge(read_facts(*files, run)));
  });
  Start start;
  start.num_ranks = 2;
  EXPECT_EQ(start_run(recipe, *files, log, start), Outcome::kDone);
  ASSERT_EQ(seen.size(), 1u);
  const RunFacts& facts = seen[0].facts;
  EXPECT_EQ(seen[0].state, RunState::kRunning);
  EXPECT_EQ(facts.num_steps, 6);
  ASSERT_EQ(facts.pages.size(), 2u);
  EXPECT_EQ(facts.pages.at(0).step, 4);
  EXPECT_EQ(facts.pages.at(0).steps_here, 4);
  EXPECT_EQ(facts.pages.at(0).place, PulsePlace::kUpdate);
  for (const auto& [rank, page] : facts.pages) {
    EXPECT_EQ(page.num_ranks, 2);
    EXPECT_GE(page.groups.size(), 2u);  // the world, and that of the data
    EXPECT_FALSE(page.operations.empty());
  }
  const RunStatus after = judge(read_facts(*files, run));
  EXPECT_EQ(after.state, RunState::kDone);
  EXPECT_TRUE(after.facts.pages.empty());
  EXPECT_EQ(after.facts.step, 6);
  EXPECT_EQ(after.facts.saved_step, 6);
  EXPECT_GT(after.facts.tokens_per_s, 0);
  EXPECT_TRUE(files->stat(run + "/pulse"));
  EXPECT_TRUE(after.facts.machines.empty());
}

}  // namespace
}  // namespace ashlar::train
