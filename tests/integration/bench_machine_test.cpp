// Characterizing a machine as a user does: threads and mpirun, a profile that is resumed, Ctrl-C.
// The machine of a test is seldom calm: 7, disturbed, is as good an end as 0.
#include <fmt/format.h>
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

TEST(BenchMachine, ATunedTableServesTraining) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result tuned =
      run(scratch, {"bench", "products", kData + "/recipes/tiny.toml", "--tune", "--threads", "1",
                    "--only", "linear_forward", "--profile", "machine.toml"});
  expect_judged(tuned);
  EXPECT_NE(tuned.out.find(" products have a faster form"), std::string::npos) << tuned.out;
  const std::string profile = read_file(scratch / "machine.toml");
  EXPECT_EQ(tuned.err.find("other programs ran meanwhile") != std::string::npos, tuned.code == 7);
  EXPECT_NE(profile.find("[products]\nfile = \"machine.products.tsv\""), std::string::npos);
  const Result trained =
      run(scratch, train_args({"train.steps=1", "train.threads=1", "train.machine=machine.toml"}));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.err.find("machine.toml has "), std::string::npos) << trained.err;
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

TEST(BenchMachine, LettersOfNcclTests) {
  const Scratch scratch;
  const Result all =
      run(scratch,
          {"bench", "collectives", "--ranks", "2",   "--ops", "broadcast", "-b", "1K", "-e", "1K",
           "-f",    "2",           "-n",      "4",   "-w",    "1",         "-c", "1",  "-o", "all",
           "-d",    "all",         "-r",      "all", "-m",    "2",         "-a", "3",  "-N", "2",
           "-K",    "1",           "-T",      "20",  "-J",    "rows.json", "-C", "-I"});
  expect_judged(all);
  EXPECT_EQ(count_of(all.out, "# cycle "), 2) << all.out;
  EXPECT_TRUE(contains(all.out, "i_cv%") && contains(all.out, "the slowest rank's")) << all.out;
  const auto json = nlohmann::json::parse(read_file(scratch / "rows.json"));
  ASSERT_EQ(json["results"].size(), 2u * 5 * 2);  // cycles, types, roots
  EXPECT_EQ(json["results"][0]["in_place_per_iter"]["times_us"].size(), 3u);

  for (const char* letter : {"-t", "-g", "-p", "-z", "-G", "-R", "-D", "-V", "-S", "-M", "-u", "-y",
                             "-F", "-q", "-Z", "-x"}) {
    const Result refused = run(scratch, {"bench", "collectives", "--ranks", "2", letter, "1"});
    EXPECT_EQ(refused.code, 2) << letter;
    EXPECT_TRUE(contains(refused.err, fmt::format("{} of nccl-tests (", letter))) << refused.err;
    EXPECT_TRUE(contains(refused.err, "is not available: ")) << refused.err;
  }
  for (const auto& [flag, value] : {std::pair{"-o", "max"},
                                    {"-d", "half"},
                                    {"-a", "4"},
                                    {"-r", "first"},
                                    {"-K", "20"},
                                    {"--engines", "nccl"}})
    EXPECT_EQ(run(scratch, {"bench", "collectives", "--ranks", "2", "-n", "20", flag, value}).code,
              2)
        << flag;
}

TEST(BenchMachine, TooLittleBandwidthFails) {
  const Scratch scratch;
  const std::vector<std::string> args = {"bench", "collectives", "--ranks", "2", "--quick",
                                         "-b",    "1K",          "-e",      "1K"};
  for (const char* gbps : {"0.000001", "1000000"}) {
    const Result result = run(scratch, args, [gbps] { setenv("NCCL_TESTS_MIN_BW", gbps, 1); });
    const bool enough = gbps[0] == '0';
    if (enough)
      EXPECT_TRUE(result.code == 0 || result.code == 7) << result.out;
    else
      EXPECT_EQ(result.code, 4) << result.out;
    EXPECT_TRUE(contains(result.out, enough ? " OK\n" : " FAILED\n")) << result.out;
  }
}

TEST(BenchMachine, EnginesSideBySide) {
  const Scratch scratch;
  const Result result = run(scratch, {"bench",     "collectives",
                                      "--engines", "exact,native,thread",
                                      "--ops",     "all_reduce,reduce_scatter",
                                      "-d",        "float,int32",
                                      "-b",        "1K",
                                      "-e",        "4K",
                                      "-f",        "4",
                                      "-n",        "3",
                                      "-J",        "rows.json",
                                      "--profile", "machine.toml"},
                            {}, mpirun(2));
  expect_judged(result);
  const auto rows = nlohmann::json::parse(read_file(scratch / "rows.json"))["results"];
  ASSERT_EQ(rows.size(), 3u * 2 * 2 * 2);
  const char* engines[] = {"mpi", "mpi-native", "thread"};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["engine"], engines[i % 3]);
    EXPECT_EQ(rows[i]["size"], rows[i - i % 3]["size"]);
    EXPECT_EQ(rows[i]["wrong"], 0) << rows[i];
  }
  const std::string profile = read_file(scratch / "machine.toml");
  for (const char* engine : engines)
    EXPECT_TRUE(contains(profile, fmt::format("engine = \"{}\"", engine))) << engine;
}

TEST(BenchMachine, ALateRankEndsItInTime) {
  const Scratch scratch;
  Program program(scratch.path(),
                  {"bench", "collectives", "--ops", "all_reduce", "-b", "64K", "-e", "64K", "-n",
                   "1000000", "-T", "0.5"},
                  {}, mpirun(2));
  pid_t late = 0;
  for (int i = 0; i < 600 && late == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    late = process_of_rank(program.pid(), 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(late, SIGSTOP);
  const Result result = program.wait();
  kill(late, SIGKILL);
  EXPECT_EQ(result.code, 6) << result.err;
  EXPECT_TRUE(contains(result.err, "waited 0.5") && contains(result.err, "rank 1")) << result.err;
}

TEST(BenchMachine, CopiesThatMpiDidNotJoinAreRefused) {
  const Scratch scratch;
  for (const char* variable : {"SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"}) {
    const auto launched = [variable] { setenv(variable, "4", 1); };
    const Result refused = run(scratch, {"bench", "launch", "--quick"}, launched);
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_TRUE(contains(refused.err, fmt::format("{} is 4, so a launcher", variable)));
    const Result alone =
        run(scratch, {"bench", "launch", "--quick", "--allow-independent"}, launched);
    EXPECT_TRUE(alone.code == 0 || alone.code == 7) << alone.err;
  }
}

TEST(BenchMachine, CtrlCKeepsWhatThereIs) {
  const Scratch scratch;
  Program program(scratch.path(), {"bench", "all", "--quick", "--ranks", "2", "--profile",
                                   "machine.toml", "--json", "all.json"});
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
      run(scratch, {"bench", "kernels", kData + "/recipes/tiny.toml", "--ranks", "2", "--layout",
                    "parallel.zero=1", "--layout", "parallel.tp=2", "--rounds", "2", "--steps", "1",
                    "--profile", "machine.toml", "train.micro_batch=1", "train.threads=1"});
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
