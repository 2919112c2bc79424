// Characterizing a machine as a user does: threads and mpirun, a profile that is resumed, Ctrl-C.
// The machine of a test is seldom calm: 7, disturbed, is as good an end as 0.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

void expect_judged(const Result& result) {
  EXPECT_TRUE(result.code == 0 || result.code == 4 || result.code == 7) << result.code << "\n"
                                                                        << result.out << result.err;
  EXPECT_NE(result.out.find("verdict: "), std::string::npos) << result.out;
}

TEST(BenchMachine, AProfileIsFilledAndResumed) {
  const Scratch scratch;
  const std::vector<std::string> all = {"bench",     "all",          "--quick", "--ranks", "2",
                                        "--profile", "machine.toml", "--json",  "all.json"};
  expect_judged(run(scratch, all));
  const std::string profile = read_file(scratch / "machine.toml");
  for (const char* text : {"op = \"all_reduce\"", "subject = \"stream triad\"", "wake_idle",
                           "subject = \"product F32 K 1024\"", "[[mount]]"})
    EXPECT_NE(profile.find(text), std::string::npos) << text;
  const auto json = nlohmann::json::parse(read_file(scratch / "all.json"));
  EXPECT_EQ(json["parts"].size(), 7u);
  for (const auto& row : json["results"]) EXPECT_EQ(row["wrong"], 0) << row;

  std::vector<std::string> again = all;
  again.push_back("--resume");
  again.push_back("--force");
  const Result resumed = run(scratch, again);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("already in the profile: launch, stream"), std::string::npos)
      << resumed.out;
  expect_judged(run(scratch, {"bench", "compare", "machine.toml", "machine.toml"}));
}

TEST(BenchMachine, ProcessesMeasureAsThreadsDo) {
  const Scratch scratch;
  for (const bool processes : {false, true}) {
    std::vector<std::string> args = {"bench",  "collectives",
                                     "--ops",  "all_reduce,all_to_allv",
                                     "-b",     "1K",
                                     "-e",     "64K",
                                     "-f",     "8",
                                     "-n",     "3",
                                     "--json", processes ? "mpi.json" : "threads.json"};
    if (!processes) args.insert(args.end(), {"--ranks", "2"});
    expect_judged(run(scratch, args, {}, processes ? mpirun(2) : std::vector<std::string>{}));
    const auto json =
        nlohmann::json::parse(read_file(scratch / (processes ? "mpi.json" : "threads.json")));
    EXPECT_EQ(json["engine"], processes ? "mpi" : "thread");
    ASSERT_EQ(json["results"].size(), 3u * 2 * 2);
    for (const auto& row : json["results"]) {
      EXPECT_EQ(row["wrong"], 0) << row;
      EXPECT_GT(row["out_of_place"]["bus_bw"], 0) << row;
      EXPECT_EQ(row["actual_iterations"], 3) << row;
    }
  }
}

TEST(BenchMachine, CtrlCKeepsWhatThereIs) {
  const Scratch scratch;
  Program program(scratch.path(), {"bench", "all", "--ranks", "2", "--profile", "machine.toml",
                                   "--json", "all.json"});
  for (int i = 0; i < 600 && !std::filesystem::exists(scratch / "machine.toml"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  program.send(SIGINT);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.err;
  EXPECT_NE(result.out.find("not begun, time was up: "), std::string::npos) << result.out;
  EXPECT_NE(read_file(scratch / "machine.toml").find("wake_idle"), std::string::npos);
  EXPECT_GE(nlohmann::json::parse(read_file(scratch / "all.json"))["parts"].size(), 1u);
}

TEST(BenchMachine, KernelsGoBesideTheProfile) {
  const Scratch scratch;
  const Result result =
      run(scratch, {"bench", "kernels", kData + "/recipes/tiny.toml", "--ranks", "2", "--steps",
                    "2", "--profile", "machine.toml", "train.micro_batch=1", "train.threads=1"});
  EXPECT_TRUE(result.code == 0 || result.code == 7) << result.err;
  EXPECT_NE(read_file(scratch / "machine.toml").find("file = \"machine.kernels.tsv\""),
            std::string::npos);
  const std::string table = read_file(scratch / "machine.kernels.tsv");
  EXPECT_TRUE(table.starts_with("op\tdtype\tgroups\trows\tcols\tdepth\tflop\tbytes\tranks\t"));
  EXPECT_GT(count_of(table, "\n"), 10);
}

TEST(BenchMachine, OtherFilesAndMachinesAreRefused) {
  const Scratch scratch;
  write_file(scratch / "notes.toml", "hello = 1\n");
  Result result = run(scratch, {"bench", "launch", "--quick", "--profile", "notes.toml"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(read_file(scratch / "notes.toml"), "hello = 1\n");
  result = run(scratch, {"bench", "launch", "--quick", "--resume"});
  EXPECT_EQ(result.code, 2) << result.err;
}

}  // namespace
}  // namespace ashlar::integration
