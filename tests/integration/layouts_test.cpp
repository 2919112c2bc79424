// Runs on meshes of ranks as a user starts them: they go on on other meshes, survive the loss of a
// rank, and give the same bits as threads and as processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;

// Every rank writes its own part.
Keys alone(Keys keys) {
  keys.push_back("checkpoint.gather_mib=0");
  return keys;
}

struct Layout {
  const char* name;
  int num_ranks;
  Keys keys;
  int num_writers = 1;  // one for all ranks of a machine
};

const Keys kZero3 = {"parallel.zero=3", "parallel.zero_layout=bucketed",
                     "parallel.bucket_bytes=20000"};

// Steps and rows that every layout here can share.
std::vector<std::string> args(const std::string& directory, int num_threads, Keys keys, int steps) {
  keys.insert(keys.end(), {"train.steps=" + std::to_string(steps), "data.sequence_length=48",
                           "optim.schedule=constant", "checkpoint.every=10", "checkpoint.keep=20"});
  return run_args(directory, num_threads, keys);
}

int64_t data_bytes(const fs::path& safetensors) {
  const std::string bytes = read_file(safetensors);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  return int64_t(bytes.size() - 8 - header);
}

// Bytes of tensors in "model" and "optim", by writer as files name it.
std::map<std::string, int64_t> written(const fs::path& step) {
  std::map<std::string, int64_t> bytes;
  for (const char* component : {"model", "optim"})
    for (const auto& entry : fs::directory_iterator(step / component))
      bytes[entry.path().filename().string().substr(0, strlen("shard-00001"))] +=
          data_bytes(entry.path());
  return bytes;
}

int64_t total(const std::map<std::string, int64_t>& bytes) {
  int64_t sum = 0;
  for (const auto& [writer, part] : bytes) sum += part;
  return sum;
}

void expect_written_by(const fs::path& step, int num_writers, int64_t one_rank_bytes) {
  const auto bytes = written(step);
  EXPECT_EQ(int(bytes.size()), num_writers);
  EXPECT_EQ(total(bytes), one_rank_bytes);
  for (const auto& [writer, part] : bytes)
    EXPECT_NEAR(double(part), double(one_rank_bytes) / num_writers,
                0.25 * double(one_rank_bytes) / num_writers)
        << writer;
}

void expect_counted(const fs::path& run_directory) {
  std::istringstream text(read_file(run_directory / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (row.contains("event")) continue;
    EXPECT_EQ(row["samples"].get<int64_t>(), 8 * row["step"].get<int64_t>());
    EXPECT_EQ(row["tokens"].get<int64_t>(), 8 * 48 * row["step"].get<int64_t>());
  }
}

TEST(Layouts, ARunGoesOnOnAnyOther) {
  const std::vector<Layout> layouts = {
      {"dp 4, zero 3", 4, kZero3},
      {"dp 4, zero 3, four writers", 4, alone(kZero3), 4},
      {"tp 2", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}},
      {"cp 3", 3, {"parallel.cp=3", "parallel.cp_exchange=ring"}},
      {"dp 2, cp 2, tp 2, zero 1", 8, {"parallel.cp=2", "parallel.tp=2", "parallel.zero=1"}},
      {"one rank", 1, {}}};
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, args("straight", 1, {}, 60));
  int steps = 0;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    steps += 10;
    run_ok(scratch, args("parts", layout.num_ranks, layout.keys, steps));
    const fs::path step = step_directory(scratch / "parts", steps);
    run_ok(scratch, {"ckpt", "verify", "--level", "deep", step.string()});
    expect_written_by(step, layout.num_writers,
                      total(written(step_directory(scratch / "straight", steps))));
  }
  expect_close(read_steps(scratch / "straight"), read_steps(scratch / "parts"));
  expect_counted(scratch / "parts");
}

TEST(Layouts, ThreadsAndProcessesGiveTheSameBits) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<Layout> layouts = {
      {"tensor", 4, {"parallel.dp=2", "parallel.tp=2"}},
      {"context", 2, {"parallel.cp=2", "parallel.zero=2", "parallel.cp_layout=zigzag"}}};
  for (const Layout& layout : layouts) {
    const std::string threads = std::string(layout.name) + "_threads",
                      processes = std::string(layout.name) + "_processes";
    run_ok(scratch, args(threads, layout.num_ranks, layout.keys, 20));
    const Result result =
        run(scratch, args(processes, 1, layout.keys, 20), {}, mpirun(layout.num_ranks));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(read_steps(scratch / threads).size(), 20u);
    EXPECT_TRUE(read_steps(scratch / threads) == read_steps(scratch / processes)) << layout.name;
  }
}

// Every line of `again` has the bits of the straight run: those of steps done twice included, those
// after its end left out.
void expect_same_bits(const Scratch& scratch, const std::string& straight,
                      const std::string& again) {
  const Steps want = read_steps(scratch / straight), got = read_steps(scratch / again);
  EXPECT_TRUE(got.contains(want.rbegin()->first));
  for (const auto& [step, lines] : got) {
    if (!want.contains(step)) continue;
    for (const StepLine& line : lines) EXPECT_EQ(line, want.at(step)[0]) << again << " " << step;
  }
}

void wait_for_step(Program& program, const fs::path& run_directory, int64_t step) {
  while (!fs::exists(step_directory(run_directory, step) / "COMMIT") && program.running())
    usleep(1000);
}

// {name, state, parent}: the letters of proc(5), "Z" of what ended and waits for its parent.
struct Process {
  std::string name, state;
  pid_t parent = -1;
};
Process process(const fs::path& directory) {
  Process p;
  pid_t pid = 0;
  std::ifstream(directory / "stat") >> pid >> p.name >> p.state >> p.parent;
  return p;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (process(entry.path()).parent == parent)
      children.push_back(std::stoi(entry.path().filename().string()));
  }
  return children;
}

bool lives(pid_t pid) {
  const Process p = process(fs::path("/proc") / std::to_string(pid));
  return p.parent >= 0 && p.state != "Z";
}

TEST(Layouts, AKilledRunGoesOnBitForBit) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, args("straight", 4, kZero3, 200));
  {
    Program program(scratch.path(), args("killed", 4, kZero3, 200));
    wait_for_step(program, scratch / "killed", 50);
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().signal, SIGKILL);
  }
  const Result rest = run(scratch, args("killed", 4, kZero3, 200));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("continuing after step "), std::string::npos) << rest.err;
  expect_same_bits(scratch, "straight", "killed");
}

// Rank 2 of 4 is killed in the middle of the run.
void expect_a_killed_rank_ends_all(const Keys& keys) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, args("straight", 4, keys, 60));
  {
    Program program(scratch.path(), args("killed", 1, keys, 100000), {}, mpirun(4));
    wait_for_step(program, scratch / "killed", 10);
    const std::vector<pid_t> ranks = children_of(program.pid());
    ASSERT_EQ(ranks.size(), 4u);
    const auto start = std::chrono::steady_clock::now();
    kill(ranks[2], SIGKILL);
    EXPECT_EQ(program.wait().code, 128 + SIGKILL);
    // mpirun does not wait for those that it ended.
    while (std::any_of(ranks.begin(), ranks.end(), lives) &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
      usleep(1000);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
  const Result rest = run(scratch, args("killed", 1, keys, 60), {}, mpirun(4));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("continuing after step "), std::string::npos) << rest.err;
  expect_same_bits(scratch, "straight", "killed");
}

TEST(Layouts, AKilledRankEndsAllAndNothingIsLost) {
  expect_a_killed_rank_ends_all({"parallel.dp=2", "parallel.tp=2", "parallel.zero=1"});
}

TEST(Layouts, AKilledStageEndsAllAndNothingIsLost) {
  expect_a_killed_rank_ends_all({"parallel.pp=2", "parallel.schedule=zb", "parallel.ep=2"});
}

TEST(Layouts, AKilledRankOfAnAllToAllEndsAllAndNothingIsLost) {
  expect_a_killed_rank_ends_all({"parallel.cp=2", "parallel.cp_exchange=all_to_all",
                                 "parallel.pp=2", "parallel.schedule=interleaved",
                                 "parallel.virtual_stages=2", "model.num_hidden_layers=4"});
}

// Rank 1 of 2 is started with a wider model, or with another number that no message would show.
TEST(Layouts, AProcessWithAnotherRecipeIsNamed) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const std::string key : {"model.hidden_size", "train.seed"}) {
    const Keys layout = {"parallel.pp=2"}, other = {"parallel.pp=2", key + "=40"};
    std::vector<std::string> both = args("run", 1, layout, 10);
    both.insert(both.end(), {":", "-n", "1", ASHLAR_BINARY});
    for (const std::string& word : args("run", 1, other, 10)) both.push_back(word);
    const Result result = run(scratch, both, {}, mpirun(1));
    EXPECT_EQ(result.code, 2) << result.err;
    // A rank that the launcher ends may say that it was signalled.
    EXPECT_EQ(count_of(result.err, "ashlar: ") - count_of(result.err, "ashlar: TERM: "), 1)
        << result.err;
    const size_t own = result.err.find("rank 1 on "), leaders = result.err.find("rank 0 on ");
    EXPECT_NE(result.err.find(" has " + key + " = 40 but rank 0 on ", own), std::string::npos)
        << result.err;
    EXPECT_NE(result.err.find(" has " + key + " = ", leaders), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(scratch / "run"));
  }
}

// Stage 2 of 4 stands still: its neighbours wait for it, and the others for these.
TEST(Layouts, ALateStageIsNamed) {
  const Scratch scratch;
  prepare_text(scratch);
  const Keys keys = {"parallel.pp=4", "model.num_hidden_layers=4", "parallel.timeout_s=6"};
  Program program(scratch.path(), args("run", 1, keys, 100000), {}, mpirun(4));
  wait_for_step(program, scratch / "run", 10);
  const std::vector<pid_t> ranks = children_of(program.pid());
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks[2], SIGSTOP);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 30) << result.err;
  // A rank that the launcher ends may say that it was signalled.
  EXPECT_EQ(count_of(result.err, "ashlar: ") - count_of(result.err, "ashlar: TERM: "), 1)
      << result.err;
  // It may have been stopped within a message.  Stage 0 begins to wait for stage 1 about when that
  // begins to wait for stage 2, so that either may give up first.
  const auto says = [&](const char* text) { return result.err.find(text) != std::string::npos; };
  const bool by_neighbor =
      says("; not arrived: rank 2; ") || says("; arrived but did not finish: rank 2; ");
  const bool by_next = says("; not arrived: rank 1; ") && says("wait for [rank 0 of 4");
  EXPECT_TRUE(by_neighbor || by_next) << result.err;
}

// Rank 2 may write no file of more than 4 KiB; over TCP Open MPI needs none.
std::vector<std::string> mpirun_with_a_full_disk() {
  std::vector<std::string> launcher = mpirun(4);
  launcher.insert(launcher.end(),
                  {"--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "/bin/bash", "-c",
                   "if [ $OMPI_COMM_WORLD_RANK = 2 ]; then trap '' XFSZ; ulimit -f 4; fi; "
                   "exec \"$0\" \"$@\""});
  return launcher;
}

TEST(Layouts, ARankThatCannotWriteFailsTheSaveAndTheEarlierStepStaysGood) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, args("straight", 4, kZero3, 30));
  run_ok(scratch, args("run", 4, kZero3, 10));
  const Result failed =
      run(scratch, args("run", 1, alone(kZero3), 100000), {}, mpirun_with_a_full_disk());
  EXPECT_EQ(failed.code, 25) << failed.err;
  EXPECT_EQ(count_of(failed.err, "step 20 is not saved"), 1) << failed.err;
  EXPECT_EQ(count_of(failed.err, "\nashlar: "), 1) << failed.err;
  run_ok(scratch, {"ckpt", "verify", step_directory(scratch / "run", 10).string()});
  for (const auto& entry : fs::directory_iterator(scratch / "run/checkpoints"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("step-") &&
                 entry.path() != step_directory(scratch / "run", 10))
        << entry.path();
  run_ok(scratch, args("run", 4, kZero3, 30));
  expect_same_bits(scratch, "straight", "run");
}

}  // namespace
}  // namespace ashlar::integration
