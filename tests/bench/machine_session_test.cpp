// Sessions of `ashlar bench`: every part runs and fills the profile; verdicts, resuming, budgets,
// and the files that others read.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "ashlar/bench/machine/session.h"
#include "ashlar/comm/agree.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/json.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::bench {
namespace {

using machine::Verdict;

// Runs the session on ranks that are threads, and returns rank 0's report.
SessionReport run_on(int num_ranks, const std::vector<PartCall>& calls, SessionOptions options,
                     Keeping& keeping) {
  SessionReport report;
  Allocator allocator(Device::kCpu);
  Log log([](std::string_view) {});
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
    Keeping none;
    const bool leads = ranks.rank() == 0;
    SessionReport mine =
        run_session(calls, {ranks, allocator, 1, num_ranks}, options, leads ? keeping : none, log);
    if (leads) report = std::move(mine);
  });
  return report;
}

SessionOptions quick_options(const std::string& directory = ".") {
  SessionOptions options;
  options.name = "all";
  options.flags = " --quick";
  options.engine = "thread";
  options.directory = directory;
  options.quick = true;
  return options;
}

// A part that finds one number.
PartCall triad_of(double gbps, int64_t left_out = 0) {
  return {"stream", [=](const Rig& rig) {
            Findings findings;
            findings.profile.set("memory.triad", rig.quantity(gbps, "GB/s", 0.01));
            findings.num_left_out = left_out;
            findings.rows.push_back(R"({"experiment_name":"triad","value":1,"wrong":0})");
            return findings;
          }};
}

const ForeignShare kCalm{0.0, ""};

TEST(MachineSession, EveryPartRunsAndFillsTheProfile) {
  const testing_support::TemporaryDirectory directory;
  std::vector<PartCall> calls;
  for (const Part& part : parts())
    if (part.name != "collectives" && part.name != "p2p")  // have tests of their own
      calls.push_back({std::string(part.name), part.measure, part.least_ranks});
  Keeping keeping;
  int kept = 0;
  keeping.keep = [&](const machine::Profile&) { ++kept; };
  const SessionReport report = run_on(2, calls, quick_options(directory.path().string()), keeping);
  EXPECT_EQ(kept, int(calls.size()));
  for (const PartResult& part : report.parts) {
    EXPECT_TRUE(part.findings.faults.empty()) << part.name;
    EXPECT_FALSE(part.findings.rows.empty()) << part.name;
    EXPECT_EQ(part.findings.num_left_out, 0) << part.name;
  }
  ASSERT_TRUE(keeping.profile);
  for (const char* key :
       {"launch.kernel", "launch.wake_idle", "launch.wake_busy", "launch.lane_cores",
        "contention.products", "memory.copy", "memory.triad", "memory.copy_streaming",
        "memory.triad_streaming", "compute.achievable_fp32", "compute.sustained_fp32"})
    EXPECT_NE(keeping.profile->find(key), nullptr) << key;
  std::set<std::string> subjects;
  for (const machine::RateCurve& curve : keeping.profile->rates) {
    subjects.insert(curve.subject);
    EXPECT_GT(curve.points.at(0).median, 0) << curve.subject;
  }
  for (const char* subject :
       {"stream triad", "stream nstream", "stream dot", "stream triad, streaming",
        "product F32 K 1024", "attention forward D 128", "attention backward D 128",
        "recurrence delta backward", "norm forward", "norm backward", "add and norm forward",
        "add and norm backward", "adamw", "muon momentum", "muon apply", "Newton-Schulz",
        "disk sequential write, 2 ranks", "disk random write, 2 ranks"})
    EXPECT_TRUE(subjects.contains(subject)) << subject;
  const std::string closing = closing_text(report);
  EXPECT_NE(closing.find("not measured: storage.scatter: it needs a run"), std::string::npos)
      << closing;
  EXPECT_EQ(closing.find("not measured: memory.copy"), std::string::npos) << closing;
  // The file reads back as it was written.
  const std::string text = machine::to_toml(*keeping.profile);
  EXPECT_EQ(machine::to_toml(machine::parse_profile(text, "machine.toml")), text);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));  // the disk's files are gone
}

TEST(MachineSession, SmokeNamesRanksAndJudgesThem) {
  Keeping keeping;
  const SessionReport report = run_on(3, {{"smoke", measure_smoke}}, quick_options(), keeping);
  ASSERT_EQ(report.parts.size(), 1u);
  const Findings& findings = report.parts[0].findings;
  EXPECT_TRUE(findings.faults.empty());
  ASSERT_EQ(findings.fleets.size(), 2u);  // product, memory
  // Noise may hide one of the three, and make a pair look slow.
  const auto is_of_rank = [](const machine::Judgement& j) {
    return j.name.starts_with("messages of rank");
  };
  EXPECT_LE(std::ranges::count_if(findings.judged, is_of_rank), 3);
  EXPECT_NE(findings.text.find("messages between"), std::string::npos) << findings.text;
  for (const auto& fleet : findings.fleets) {
    ASSERT_EQ(fleet.size(), 3u);
    EXPECT_NE(fleet[2].name.find("rank 2 on "), std::string::npos) << fleet[2].name;
  }
}

Findings fleet_of(std::vector<double> values) {
  Findings findings;
  auto& fleet = findings.fleets.emplace_back();
  for (size_t rank = 0; rank < values.size(); ++rank) {
    machine::Measured& m = fleet.emplace_back();
    m.name = fmt::format("product of rank {} on n01", rank);
    m.value = values[rank];
    m.unit = "TFLOP/s";
    m.cause = fmt::format("rank {} on n01 is slower than the others", rank);
  }
  return findings;
}

TEST(MachineSession, W3NamesTheSlowRank) {
  for (const auto& values : {std::vector<double>{1, 1.02, 0.5, 0.99}, {0.5, 1}}) {
    const auto judgements = judge_findings("smoke", fleet_of(values), kCalm, nullptr);
    ASSERT_EQ(judgements.size(), values.size());
    for (size_t rank = 0; rank < values.size(); ++rank) {
      const bool slow = values[rank] == 0.5;
      EXPECT_EQ(judgements[rank].verdict, slow ? Verdict::kBad : Verdict::kGood) << rank;
      if (slow) {
        EXPECT_EQ(judgements[rank].hint,
                  fmt::format("rank {} on n01 is slower than the others", rank));
      }
    }
    EXPECT_EQ(machine::exit_code(machine::worst_of(judgements), false), 4);
  }
}

machine::Judgement judgement_of_rank(int rank, Verdict verdict) {
  machine::Judgement j;
  j.verdict = verdict;
  j.rank = rank;
  return j;
}

TEST(MachineSession, W3ListsNodesThatPassAndFail) {
  const std::vector<std::string> hosts = {"n01", "n01", "n02", "n02", "n03", "n03"};
  const auto lists = [&](const std::vector<machine::Judgement>& judgements) {
    return node_lists(hosts, judgements);
  };
  using Names = std::vector<std::string>;
  EXPECT_FALSE(lists({}).judged);
  EXPECT_TRUE(lists({}).passing.empty());
  const auto good = judgement_of_rank(0, Verdict::kGood), low = judgement_of_rank(1, Verdict::kLow),
             bad = judgement_of_rank(3, Verdict::kBad);
  EXPECT_EQ(lists({good, low}).passing, (Names{"n01", "n02", "n03"}));
  EXPECT_EQ(lists({good, bad}).passing, (Names{"n01", "n03"}));
  EXPECT_EQ(lists({good, bad}).failing, Names{"n02"});
  EXPECT_EQ(lists({good, judgement_of_rank(4, Verdict::kWrongData)}).failing, Names{"n03"});
  // Nobody knows which rank made a sum wrong, and a disturbed machine says nothing.
  EXPECT_EQ(lists({judgement_of_rank(-1, Verdict::kWrongData)}).failing.size(), 3u);
  EXPECT_TRUE(lists({good, judgement_of_rank(-1, Verdict::kDisturbed)}).passing.empty());
  // A number of all ranks, such as one that is lower than last time, is no node's fault.
  EXPECT_TRUE(lists({good, judgement_of_rank(-1, Verdict::kBad)}).failing.empty());
}

TEST(MachineSession, CyclesRepeatTheParts) {
  Keeping keeping;
  SessionOptions options = quick_options();
  options.cycles = 3;
  const SessionReport report = run_on(2, {triad_of(20), {"p2p", measure_p2p, 3}}, options, keeping);
  ASSERT_EQ(report.parts.size(), 3u);
  EXPECT_EQ(report.parts[2].cycle, 3);
  EXPECT_EQ(report.too_few_ranks, std::vector<std::string>{"p2p"});
  EXPECT_EQ(Json::parse(to_json(report))["results"][2]["cycle"], 3);
  options.cycles = 0;    // until time is up
  options.budget_s = 1;  // a busy machine takes 25 ms for one
  EXPECT_GT(run_on(2, {triad_of(20)}, options, keeping).parts.size(), 3u);
}

TEST(MachineSession, TheJsonHasNoForeignVariables) {
  setenv("ASHLAR_TEST_OF_ENV", "shown", 1);
  setenv("SECRET_TOKEN", "never-shown", 1);
  setenv("MY_NCCL_KEY", "never-shown", 1);
  const std::string json = to_json({});
  unsetenv("ASHLAR_TEST_OF_ENV");
  unsetenv("SECRET_TOKEN");
  unsetenv("MY_NCCL_KEY");
  EXPECT_NE(json.find("ASHLAR_TEST_OF_ENV=shown"), std::string::npos) << json;
  EXPECT_EQ(json.find("never-shown"), std::string::npos) << json;
}

TEST(MachineSession, ADisturbedMachineGetsNoOtherVerdict) {
  const auto judgements =
      judge_findings("smoke", fleet_of({1, 1, 0.1}), {0.4, "cc1plus (process 7 on n01)"}, nullptr);
  ASSERT_EQ(judgements.size(), 1u);
  EXPECT_EQ(judgements[0].verdict, Verdict::kDisturbed);
  EXPECT_NE(judgements[0].hint.find("cc1plus (process 7 on n01)"), std::string::npos);
  EXPECT_EQ(machine::exit_code(judgements[0].verdict, false), 7);
}

TEST(MachineSession, W2JudgesByEarlierNumbersAndKeepsTheNewOnes) {
  Keeping keeping;
  machine::Profile file;
  keeping.keep = [&](const machine::Profile& profile) { file = profile; };
  EXPECT_TRUE(judge_findings("stream",
                             run_on(2, {triad_of(20)}, quick_options(), keeping).parts[0].findings,
                             kCalm, nullptr)
                  .empty());
  EXPECT_EQ(file.need("memory.triad").value, 20);
  EXPECT_EQ(file.need("memory.triad").from, "ashlar bench stream --quick");
  const machine::Profile earlier = file;
  const SessionReport report = run_on(2, {triad_of(15)}, quick_options(), keeping);
  EXPECT_EQ(file.need("memory.triad").value, 15);
  const auto judgements = judge_findings("stream", report.parts[0].findings, kCalm, &earlier);
  ASSERT_EQ(judgements.size(), 1u);
  EXPECT_EQ(judgements[0].verdict, Verdict::kLow);
  EXPECT_NE(judgements[0].expected.find("20 GB/s, measured "), std::string::npos);
  EXPECT_NE(judgements[0].hint, "");
  EXPECT_EQ(machine::exit_code(judgements[0].verdict, false), 0);
  EXPECT_EQ(machine::exit_code(judgements[0].verdict, true), 3);
}

TEST(MachineSession, ResumeLeavesOutWhatIsWhole) {
  Keeping keeping;
  keeping.keep = [](const machine::Profile&) {};
  SessionOptions options = quick_options();
  EXPECT_EQ(run_on(2, {triad_of(20, 3)}, options, keeping).parts.size(), 1u);
  EXPECT_EQ(keeping.profile->need("memory.triad").from, "ashlar bench stream --quick (stopped)");
  options.resume = true;
  EXPECT_EQ(run_on(2, {triad_of(20)}, options, keeping).parts.size(), 1u);
  const SessionReport third = run_on(2, {triad_of(20)}, options, keeping);
  EXPECT_TRUE(third.parts.empty());
  EXPECT_EQ(third.resumed, std::vector<std::string>{"stream"});
  options.flags = "";  // another command
  EXPECT_EQ(run_on(2, {triad_of(20)}, options, keeping).parts.size(), 1u);
}

TEST(MachineSession, BudgetsAndRanksLeaveOutParts) {
  Keeping keeping;
  SessionOptions options = quick_options();
  options.budget_s = 0.05;
  const PartCall slow{"launch", [](const Rig& rig) {
                        Findings findings;
                        for (int row = 0; row < 1000; ++row) {
                          findings.num_left_out += !rig.goes_on();
                          std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        }
                        return findings;
                      }};
  const SessionReport report =
      run_on(2, {slow, triad_of(1), {"p2p", measure_p2p, 3}}, options, keeping);
  ASSERT_EQ(report.parts.size(), 1u);
  EXPECT_GT(report.parts[0].findings.num_left_out, 500);
  EXPECT_EQ(report.not_begun, std::vector<std::string>{"stream"});
  EXPECT_EQ(report.too_few_ranks, std::vector<std::string>{"p2p"});
  const std::string text = closing_text(report);
  EXPECT_NE(text.find("not begun, time was up: stream"), std::string::npos) << text;
}

TEST(MachineSession, W1JsonAndCsvHaveAllRows) {
  Keeping keeping;
  const SessionReport report =
      run_on(3, {triad_of(20), {"p2p", measure_p2p}}, quick_options(), keeping);
  const Json json = Json::parse(to_json(report));
  for (const char* key :
       {"version", "start_time", "end_time", "args", "env", "config", "results", "verdicts",
        "verdict", "parts", "engine", "passing_nodes", "failing_nodes"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["config"]["devices"].size(), 3u);
  for (const char* key : {"rank", "group", "pid", "hostname", "device", "device_info"})
    EXPECT_TRUE(json["config"]["devices"][2].contains(key)) << key;
  EXPECT_EQ(json["results"].size(), 1u + 3 * 3);
  for (const Json& row : json["results"]) EXPECT_EQ(row["wrong"], 0);
  const std::string csv = to_csv(report);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 10);
  EXPECT_TRUE(csv.starts_with("experiment_name,value,wrong,bench,")) << csv;
  for (const char* column : {",foreign", ",foreign_rows", ",disturbed"})
    EXPECT_NE(csv.substr(0, csv.find('\n')).find(column), std::string::npos) << csv;
}

TEST(MachineSession, AnotherMachinesProfileIsRefused) {
  machine::Profile profile = describe_machine(2);
  require_same_machine(profile, "machine.toml");
  profile.identity["host"] = "n99";
  const std::string message = testing_support::message_of(
      ErrorKind::kConfig, [&] { require_same_machine(profile, "machine.toml"); });
  EXPECT_TRUE(message.starts_with("machine.toml is the profile of another machine: host is n99"))
      << message;
}

TEST(MachineSession, DisturbedNumbersReplaceNone) {
  const auto number = [](double value) {
    return machine::Quantity{value,        "us", machine::Origin::kMeasured, "ashlar bench launch",
                             "2026-01-31", 0};
  };
  machine::Profile found, kept;
  found.set("launch.wake_idle", number(9));
  found.set("launch.wake_busy", number(90));
  kept.set("launch.wake_idle", number(3));
  machine::Profile calm = kept;
  merge(found, true, kept);
  EXPECT_EQ(kept.quantities.at("launch.wake_idle").value, 3);
  EXPECT_EQ(kept.quantities.at("launch.wake_busy").value, 90);
  merge(found, false, calm);
  EXPECT_EQ(calm.quantities.at("launch.wake_idle").value, 9);
}

// A process of ours that only computes.
class BusyNeighbour {
 public:
  BusyNeighbour() : id_(fork()) {
    if (id_ == 0)
      for (std::atomic<uint64_t> steps{0};;) ++steps;
  }
  ~BusyNeighbour() {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }

 private:
  const pid_t id_;
};

TEST(MachineSession, ABusyNeighbourShows) {
  const BusyNeighbour neighbour;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(2, {}, allocator, [&](comm::Group& ranks) {
    ForeignWatch watch(ranks);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const ForeignShare foreign = watch.end();
    ASSERT_TRUE(foreign.share);
    EXPECT_GT(*foreign.share, machine::kMaxForeignShare);
    EXPECT_LT(*foreign.share, 1.2);
    EXPECT_NE(foreign.neighbour, "");
  });
}

TEST(MachineSession, ABusyNeighbourShowsInItsRow) {
  Allocator allocator(Device::kCpu);
  comm::run_ranks(2, {}, allocator, [&](comm::Group& ranks) {
    std::optional<BusyNeighbour> neighbour;
    RowWatch watch(ranks);
    const auto row_of = [](int milliseconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    };
    watch.begin();
    row_of(200);  // long enough for a share of its own
    if (ranks.rank() == 0) neighbour.emplace();
    ranks.barrier("neighbour").wait();
    watch.begin();
    row_of(300);
    EXPECT_TRUE(watch.again());
    row_of(300);
    EXPECT_FALSE(watch.again()) << "a row is measured twice at most";
    for (int i = 0; i < 50; ++i) watch.begin();  // too short for a share of their own
    EXPECT_EQ(watch.row(), 51);
    const std::vector<RowShare> rows = watch.end();
    ASSERT_EQ(rows.size(), 52u);
    EXPECT_TRUE(is_disturbed(rows[1]));
    EXPECT_EQ(rows[1].rows, 1);
    EXPECT_GT(rows[50].rows, 1);
    EXPECT_EQ(rows[50].share, rows[51].share);
  });
}

TEST(MachineSession, RowsGetWhatOnlyTheirPartShows) {
  std::vector<RowShare> rows{{0.0, 1, 1.0}, {0.5, 1, 1.0}, {std::nullopt, 1, 0}};
  spread({0.65, "the hypervisor of n01"}, rows);  // 0.25 are the rows' own
  EXPECT_NEAR(*rows[0].share, 0.4, 1e-12);
  EXPECT_NEAR(*rows[1].share, 0.9, 1e-12);
  EXPECT_EQ(rows[2].share, 0.65);
  rows = {{0.0, 1, 1.0}};
  spread({0.005, ""}, rows);  // within the ticks of /proc/stat
  EXPECT_EQ(rows[0].share, 0.0);
  rows = {{std::nullopt, 1, 0}};
  spread({std::nullopt, ""}, rows);
  EXPECT_FALSE(rows[0].share) << "an unknown share is no zero";
}

TEST(MachineSession, TablesMarkRowsThatOthersDisturbed) {
  PartResult part;
  part.name = "stream";
  part.findings.text = "head\n";
  part.findings.add_line("copy", 0);
  part.findings.add_line("triad", 1);
  for (const int row : {0, 1})
    part.findings.rows.push_back(fmt::format(R"({{"experiment_name":"x","row":{}}})", row));
  part.row_shares = {{0.01, 1, 1}, {0.2, 3, 1}};
  part.foreign = {0.02, "", 2, 1};
  part.seconds = 2;
  part.watch_s = 0.01;
  const std::string text = to_text(part);
  EXPECT_TRUE(text.starts_with("head\ncopy\ntriad *\n")) << text;
  EXPECT_NE(text.find("during 1 of 2 rows, marked *"), std::string::npos) << text;
  EXPECT_NE(text.find("0.50 % of it watching"), std::string::npos) << text;
  SessionReport report;
  report.parts.push_back(part);
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["results"][0]["foreign"], 0.01);
  EXPECT_EQ(json["results"][0]["disturbed"], false);
  EXPECT_EQ(json["results"][1]["foreign"], 0.2);
  EXPECT_EQ(json["results"][1]["foreign_rows"], 3);
  EXPECT_EQ(json["results"][1]["disturbed"], true);
  EXPECT_FALSE(json["results"][1].contains("row"));
  EXPECT_EQ(json["parts"][0]["watch_s"], 0.01);
}

TEST(MachineSession, AFewDisturbedRowsLeaveTheRestTheirVerdicts) {
  ForeignShare foreign{0.01, "cc1plus (process 7 on n01)", 40, 4, 0.3};
  EXPECT_NE(judge_findings("stream", fleet_of({1, 1, 1}), foreign, nullptr).at(0).verdict,
            Verdict::kDisturbed);
  foreign.disturbed_rows = 5;
  const auto judgements = judge_findings("stream", fleet_of({1, 1, 1}), foreign, nullptr);
  ASSERT_EQ(judgements.size(), 1u);
  EXPECT_EQ(judgements[0].verdict, Verdict::kDisturbed);
  EXPECT_TRUE(judgements[0].hint.starts_with("5 of 40 rows: others took 30 % of the cores"))
      << judgements[0].hint;
}

}  // namespace
}  // namespace ashlar::bench
