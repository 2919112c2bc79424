// The environment of the process: closed standard streams, limits of the system, signals.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "ashlar/core/affinity.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Text for the console must reach no file of the run, whichever descriptors are free at the start.
TEST(Process, ClosedStandardStreamsLeaveFilesWhole) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::vector<int>> cases{{2}, {1, 2}, {0, 1, 2}, {0, 2}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name = "run" + std::to_string(i);
    const Result result = run(scratch, train_args({"train.run_dir=" + name}), [&] {
      for (const int number : cases[i]) close(number);
    });
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out + result.err, "");
    EXPECT_EQ(read_steps(scratch / name).size(), 30u);  // complains of lines that are no JSON
    run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, 30).string()});
  }
}

TEST(Process, AResultThatCannotBePrintedIsAnError) {
  const Scratch scratch;
  const std::vector<std::vector<std::string>> commands{
      {"info"}, {"--version"}, {"generate", "--model", kData + "/hf_small", "--ids", "1,2"}};
  for (const auto& args : commands) {
    SCOPED_TRACE(args[0]);
    const Result full = run(scratch, args, [] {
      if (freopen("/dev/full", "w", stdout) == nullptr) _exit(126);
    });
    EXPECT_EQ(full.code, 25) << full.err;
    EXPECT_NE(full.err.find("stdout: No space left on device"), std::string::npos) << full.err;
    const Result closed = run(scratch, args, [] { close(STDOUT_FILENO); });
    EXPECT_EQ(closed.code, 25) << closed.err;
    EXPECT_NE(closed.err.find("stdout: Bad file descriptor"), std::string::npos) << closed.err;
  }
}

// Makes a descriptor the writing end of a pipe that nobody reads.
void pipe_to_nobody(int number) {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], number) < 0) _exit(126);
  close(ends[0]);
  close(ends[1]);
}

// As with `ashlar train ... 2>&1 | head`, when head has seen enough.
TEST(Process, ARunGoesOnWhenNobodyReadsItsOutput) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const int ranks : {1, 2}) {
    const std::string name = "run" + std::to_string(ranks);
    const Result result = run(scratch, run_args(name, ranks), [] {
      pipe_to_nobody(STDOUT_FILENO);
      pipe_to_nobody(STDERR_FILENO);
    });
    EXPECT_EQ(result.code, 0) << result.signal;
    EXPECT_EQ(read_steps(scratch / name).size(), 30u);
    run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, 30).string()});
  }
}

TEST(Process, AResultThatNobodyReadsIsAnError) {
  const Scratch scratch;
  const Result result = run(scratch, {"info"}, [] { pipe_to_nobody(STDOUT_FILENO); });
  EXPECT_EQ(result.code, 25) << result.signal << result.err;
  EXPECT_NE(result.err.find("stdout: Broken pipe"), std::string::npos) << result.err;
}

// Limits of processes bind no root: the program runs as a user who has no other process.
constexpr uid_t kNobodyElse = 64321;

struct Limited {
  int resource;
  rlim_t value;
  std::vector<std::string> args;
  int code;
  std::string words;
};

void become_nobody_else() {
  if (setgid(kNobodyElse) != 0 || setuid(kNobodyElse) != 0) _exit(125);
}

void limit(const Limited& c) {
  const rlimit value{c.value, c.value};
  if (setrlimit(__rlimit_resource_t(c.resource), &value) != 0) _exit(126);
  if (c.resource == RLIMIT_NPROC) become_nobody_else();
  for (int number = 3; number < 16; ++number) close(number);  // what the test had open
}

// One line with what was lacking, its code, and nothing half-written.
TEST(Process, LimitsOfTheSystemAreNamed) {
  const std::string text = kData + "/vectors/stones.txt", model = kData + "/hf_small";
  const std::vector<std::string> train = train_args({"train.steps=1"});
  const std::vector<std::string> threads{"score", "--model",   model,   "--ids",
                                         "1,2",   "--threads", "100000"};
  const std::vector<std::string> ranks = run_args("run", 2, {"train.steps=1"});
  const std::vector<std::string> prepare{"data",        "prepare", "--input", text,
                                         "--tokenizer", "byte",    "--out",   "made"};
  const std::vector<std::string> learn{"tokenizer", "train", "--input", text,
                                       "--vocab",   "320",   "--out",   "made"};
  const std::vector<std::string> import{"ckpt", "import", model, "made"};
  const std::vector<std::string> exports{"ckpt", "export", model, "made"};
  const std::string too_large = "File too large", refused = "Resource temporarily unavailable";
  const std::vector<Limited> cases{
      {RLIMIT_FSIZE, 4096, train, 25, too_large},
      {RLIMIT_FSIZE, 4096, prepare, 25, too_large},
      {RLIMIT_FSIZE, 4096, learn, 25, too_large},
      {RLIMIT_FSIZE, 4096, import, 25, too_large},
      {RLIMIT_FSIZE, 4096, exports, 25, too_large},
      {RLIMIT_NPROC, 1, {"info"}, 29, refused},
      {RLIMIT_NPROC, 1, train, 29, "starting "},
      {RLIMIT_NPROC, 2, train, 29, "starting "},
      {RLIMIT_NPROC, 1, ranks, 29, "starting 2 ranks"},
      {RLIMIT_NPROC, 4, ranks, 29, "starting "},
      {RLIMIT_NPROC, 100, threads, 29, "starting 100000 threads"},
      {RLIMIT_NPROC, 1, learn, 29, refused},
      {RLIMIT_NPROC, 1, import, 29, "starting a thread that"},
      {RLIMIT_NPROC, 2, import, 29, "starting "},
      {RLIMIT_NOFILE, 5, train, 25, "Too many open files"},
  };
  const Scratch scratch;
  prepare_text(scratch);
  fs::permissions(scratch.path(), fs::perms::all);
  const bool can_switch = run(scratch, {"--version"}, become_nobody_else).code == 0;
  const bool one_cpu = usable_cpus().size() == 1;
  for (const Limited& c : cases) {
    if (c.resource == RLIMIT_NPROC && !can_switch) continue;
    if (c.args.front() == "info" && one_cpu) continue;  // it starts no thread there
    SCOPED_TRACE(
        fmt::format("limit {} of {}: {}", int(c.resource), c.value, fmt::join(c.args, " ")));
    for (const char* name : {"run", "made"}) fs::remove_all(scratch / name);
    const Result result = run(scratch, c.args, [&c] { limit(c); });
    EXPECT_EQ(result.code, c.code) << result.signal << result.err;
    EXPECT_EQ(count_of(result.err, "ashlar: "), 1) << result.err;
    EXPECT_NE(result.err.find(c.words), std::string::npos) << result.err;
    if (c.resource == RLIMIT_NOFILE) continue;  // what cannot be opened cannot be removed
    for (const auto& [path, text] : read_tree(scratch.path()))
      EXPECT_EQ(path.find("tmp"), std::string::npos) << path;
  }
  if (!can_switch) GTEST_SKIP() << "limits of processes need root, and a program others may run";
}

// Waits until the file is there or the program ends.
void wait_for(Program& program, const fs::path& path) {
  while (!fs::exists(path) && program.running())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A step is done, and its row is written; that of a later step may be half written.
void wait_for_a_row(Program& program, const fs::path& run_directory) {
  const fs::path path = run_directory / "metrics.jsonl";
  const auto has_row = [&] {
    return fs::exists(path) && read_file(path).find("\"samples\"") != std::string::npos;
  };
  while (program.running() && !has_row()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// As from `timeout`, mpirun and Slurm, which signal more than once: on one rank and on threads.
TEST(Process, RepeatedStopSignalsLoseNothing) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    for (const int ranks : {1, 2}) {
      const std::string name = "run" + std::to_string(signal) + "x" + std::to_string(ranks);
      SCOPED_TRACE(name);
      Program program(scratch.path(),
                      run_args(name, ranks, {"train.steps=1000000", "checkpoint.every=0"}));
      wait_for_a_row(program, scratch / name);
      // For less than a second: later the signal would be one that is meant once more.
      const auto end = Clock::now() + std::chrono::milliseconds(400);
      while (Clock::now() < end && program.running()) {
        program.send(signal);
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      const Result result = program.wait();
      EXPECT_EQ(result.code, 27) << result.signal << result.err;
      EXPECT_EQ(count_of(result.err, "and stopping"), 1) << result.err;
      const int64_t done = read_steps(scratch / name).rbegin()->first;
      run_ok(scratch, {"ckpt", "verify", step_directory(scratch / name, done).string()});
    }
  }
}

// A closed terminal ends a run that nohup protects from it no more than any other program.
TEST(Process, ARunUnderNohupGoesOnWhenItsTerminalCloses) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), run_args("run", 1, {"train.steps=1000000"}),
                  [] { signal(SIGHUP, SIG_IGN); });
  wait_for(program, step_directory(scratch / "run", 10) / "COMMIT");
  program.send(SIGHUP);
  const auto newer = [&] { return fs::exists(step_directory(scratch / "run", 60) / "COMMIT"); };
  while (!newer() && program.running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGTERM);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.signal << result.err;
  EXPECT_EQ(count_of(result.err, "TERM: saving step"), 1) << result.err;
  EXPECT_EQ(count_of(result.err, "HUP: saving step"), 0) << result.err;
}

// mpirun passes SIGUSR1 on.
TEST(Process, RepeatedStopSignalsLoseNothingUnderMpirun) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(),
                  run_args("run", 1, {"train.steps=1000000", "checkpoint.every=20"}), {},
                  mpirun(2));
  wait_for(program, step_directory(scratch / "run", 20) / "COMMIT");
  for (int i = 0; i < 10 && program.running(); ++i) {
    program.send(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.err;
  EXPECT_EQ(count_of(result.err, "USR1: saving step"), 1) << result.err;
  const int64_t done = read_steps(scratch / "run").rbegin()->first;
  run_ok(scratch, {"ckpt", "verify", step_directory(scratch / "run", done).string()});
}

TEST(Process, TheSameSignalASecondLaterEndsARunUnsaved) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string name = signal == SIGINT ? "INT" : "TERM";
    // A step of many seconds, which is not divided while it is traced.
    Program program(scratch.path(), train_args({"train.run_dir=" + name, "train.trace_steps=1",
                                                "train.global_batch=100000"}));
    wait_for(program, scratch / name / "metrics.jsonl");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // into the step
    program.send(signal);
    program.send(signal);  // the same one by another way
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    ASSERT_TRUE(program.running());
    program.send(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(program.running());
    program.send(signal);
    const Result result = program.wait();
    EXPECT_EQ(result.code, 28) << result.signal;
    EXPECT_EQ(count_of(result.err, "; again: without saving\n"), 1) << result.err;
    EXPECT_EQ(count_of(result.err, "ashlar: " + name + " again: ended without saving"), 1)
        << result.err;
  }
}

// Nothing is lost before the first step.
TEST(Process, BeforeTheFirstStepNothingIsSaved) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), train_args({"train.global_batch=100000"}));
  wait_for(program, scratch / "run" / "metrics.jsonl");
  program.send(SIGTERM);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.err;
  EXPECT_EQ(count_of(result.err, "TERM: stopping; no step is done, and nothing is saved\n"), 1)
      << result.err;
  EXPECT_FALSE(fs::exists(step_directory(scratch / "run", 0)));
}

// One trains; the others are told so and change nothing, whatever their recipe says.
TEST(Process, OfSeveralStartsAtOnceOneTrains) {
  const Scratch scratch;
  prepare_text(scratch);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int i = 0; i < 3; ++i)
      programs.push_back(std::make_unique<Program>(
          scratch.path(), train_args({"train.steps=1000000", "checkpoint.every=0",
                                      "train.log_every=" + std::to_string(100 + i)})));
    std::vector<int> running{0, 1, 2};
    while (running.size() > 1) {
      std::erase_if(running, [&](int i) { return !programs[size_t(i)]->running(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(running.size(), 1u);
    Program& winner = *programs[size_t(running[0])];
    wait_for(winner, scratch / "run/metrics.jsonl");
    winner.send(SIGTERM);
    for (int i = 0; i < 3; ++i) {
      const Result result = programs[size_t(i)]->wait();
      EXPECT_EQ(result.code, i == running[0] ? 27 : 2) << result.err;
      EXPECT_EQ(count_of(result.err, " is in use: process "), i == running[0] ? 0 : 1);
    }
    EXPECT_NE(read_file(scratch / "run/recipe.toml")
                  .find("log_every = " + std::to_string(100 + running[0])),
              std::string::npos);
  }
}

}  // namespace
}  // namespace ashlar::integration
