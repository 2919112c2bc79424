// `ashlar launch`: whatever ends the ranks, the run comes to the end that it would have had.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> launch_args(const std::string& directory, int num_ranks,
                                     std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"checkpoint.every=20", "checkpoint.keep=100", "train.eval_every=0",
               "health.max_norm_ratio=1e9", "health.max_loss_rise=1e9", "launch.backoff_s=0"});
  std::vector<std::string> args = run_args(directory, 1, more);
  args[0] = "launch";
  args.insert(args.end(), {"--ranks-per-node", std::to_string(num_ranks)});
  return args;
}

std::vector<nlohmann::json> events_of(const fs::path& run, const std::string& name) {
  std::vector<nlohmann::json> rows;
  std::istringstream text(read_file(run / "launch/events.jsonl"));
  for (std::string line; std::getline(text, line);)
    if (nlohmann::json row = nlohmann::json::parse(line); row["event"] == name)
      rows.push_back(std::move(row));
  return rows;
}

// The process that works in this directory, and is this rank of an mpirun or has this environment.
pid_t process_in(const fs::path& directory, const std::string& setting) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::error_code error;
    if (fs::read_symlink(entry.path() / "cwd", error) != directory || error) continue;
    std::ifstream environment(entry.path() / "environ");
    for (std::string word; std::getline(environment, word, '\0');)
      if (word == setting) return std::stoi(name);
  }
  return 0;
}

// While the run lives its last row may be torn.
bool has_event(const fs::path& run, const std::string& name) {
  const fs::path path = run / "launch/events.jsonl";
  return fs::exists(path) && contains(read_file(path), "\"event\":\"" + name + "\"");
}

template <typename F>
bool comes(double seconds, F&& true_now) {
  for (int i = 0; i < int(seconds * 1000); ++i) {
    if (true_now()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// The tensors of a step, byte by byte, without the headers of their files, which have random ids.
std::map<std::string, std::string> tensors_of(const fs::path& run, int64_t step) {
  std::map<std::string, std::string> files = read_tree(step_directory(run, step));
  std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
  for (auto& [name, bytes] : files) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    bytes.erase(0, sizeof header_bytes + header_bytes);
    EXPECT_FALSE(bytes.empty()) << name;
  }
  EXPECT_FALSE(files.empty()) << run;
  return files;
}

void expect_same_end(const Scratch& scratch, int64_t step) {
  EXPECT_TRUE(tensors_of(scratch / "run", step) == tensors_of(scratch / "calm", step));
}

// Waits until the run has saved step 40; the process with that setting.
pid_t victim_of(const Scratch& scratch, Program& program, const std::string& setting) {
  EXPECT_TRUE(comes(
      60, [&] { return fs::exists(step_directory(scratch / "run", 40)) || !program.running(); }));
  const pid_t victim = process_in(scratch.path(), setting);
  EXPECT_GT(victim, 0);
  return victim;
}

double unix_now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The end of a run that was hurt, and the time from then to the event of the fault.
struct Hurt {
  Result result;
  double named_after_s = 0;
};
Hurt run_and_hurt(const Scratch& scratch, const std::vector<std::string>& args,
                  const std::string& setting, int signal) {
  Program program(scratch.path(), args);
  const pid_t victim = victim_of(scratch, program, setting);
  const double hurt_s = unix_now_s();
  if (victim > 0) kill(victim, signal);
  Hurt hurt{program.wait()};
  const auto faults = events_of(scratch / "run", "fault");
  EXPECT_EQ(faults.size(), 1u) << hurt.result.err;
  if (!faults.empty()) hurt.named_after_s = faults[0]["t"].get<double>() - hurt_s;
  return hurt;
}

double sum_of_goodput(const nlohmann::json& stop) {
  double sum = 0;
  for (const auto& [name, seconds] : stop["goodput"].items()) sum += seconds.get<double>();
  return sum;
}

TEST(Launch, TellsAProgramOfEveryEvent) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result =
      run(scratch,
          launch_args("run", 1, {"train.steps=3", R"(launch.notify=["sh","-c","cat >> told"])"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string events = read_file(scratch / "run/launch/events.jsonl");
  EXPECT_GE(count_of(events, "\n"), 3);  // start, first_step, stop
  EXPECT_TRUE(comes(
      60, [&] { return fs::exists(scratch / "told") && read_file(scratch / "told") == events; }));
}

TEST(Launch, GoesOnAfterAKill) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::string> steps{"train.steps=100"};
  run_ok(scratch, run_args("calm", 1,
                           {"train.steps=100", "checkpoint.every=20", "train.eval_every=0",
                            "health.max_norm_ratio=1e9", "health.max_loss_rise=1e9"}));
  const auto [result, named_after_s] =
      run_and_hurt(scratch, launch_args("run", 1, steps), "ASHLAR_ATTEMPT=1", SIGKILL);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same_end(scratch, 100);
  EXPECT_TRUE(contains(result.err, "fault 1: rank 0: ended by signal 9 (Killed)")) << result.err;
  EXPECT_TRUE(contains(result.err, "\nevidence: ")) << result.err;
  EXPECT_TRUE(contains(result.err, "\naction: attempt 2 now, from step ")) << result.err;
  const auto faults = events_of(scratch / "run", "fault");
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0]["class"], "killed");
  EXPECT_GT(named_after_s, 0);
  EXPECT_LT(named_after_s, 2) << "half a second where nothing else runs";
  const auto stops = events_of(scratch / "run", "stop");
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_NEAR(sum_of_goodput(stops[0]), stops[0]["wall_s"].get<double>(), 1e-6);
}

TEST(Launch, StopsWhenAskedTo) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), launch_args("run", 1, {"train.steps=1000000"}));
  ASSERT_TRUE(comes(60, [&] { return fs::exists(step_directory(scratch / "run", 20)); }));
  program.send(SIGTERM);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 27) << result.err;
  EXPECT_EQ(process_in(scratch.path(), "ASHLAR_ATTEMPT=1"), 0);
  EXPECT_EQ(events_of(scratch / "run", "preempt").size(), 1u);
  EXPECT_EQ(events_of(scratch / "run", "start").size(), 1u);
}

// The model of the checkpoint is another one: only the ranks can know.
TEST(Launch, StopsAtOnceForAConfiguration) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, run_args("run", 1, {"train.steps=2"}));
  std::vector<std::string> more{"train.steps=4", "model.num_hidden_layers=3"};
  const Result result = run(scratch, launch_args("run", 1, more));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_TRUE(contains(result.err, "configuration: ")) << result.err;
  EXPECT_EQ(events_of(scratch / "run", "start").size(), 1u);
}

TEST(Launch, NamesTheKeyOfADirectoryThatCannotBeMade) {
  const Scratch scratch;
  write_file(scratch / "run", "a file");
  const Result result = run(scratch, launch_args("run", 1));
  EXPECT_EQ(result.code, 25) << result.err;
  EXPECT_TRUE(contains(result.err, "train.run_dir is run, but run is no directory")) << result.err;
}

TEST(Launch, OpensTheDataOfANewRunBeforeItsRanksDo) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, launch_args("run", 1, {"data.train=tex"}));
  EXPECT_EQ(result.code, 24) << result.err;
  EXPECT_TRUE(contains(result.err, "data.train: tex.idx: there is no such file")) << result.err;
  EXPECT_FALSE(fs::exists(scratch / "run/launch/events.jsonl"));
}

TEST(Launch, StopsACrashLoopWithItsSignature) {
  const Scratch scratch;
  prepare_text(scratch);
  run_ok(scratch, launch_args("run", 1, {"train.steps=1"}));
  fs::resize_file(scratch / "text.bin", 100);
  const Result result = run(scratch, launch_args("run", 1, {"launch.fruitless_attempts=2"}));
  EXPECT_EQ(result.code, 24) << result.err;
  EXPECT_TRUE(contains(result.err, "2 attempts in a row committed no new step")) << result.err;
  EXPECT_TRUE(contains(result.err, "each ended with data: ")) << result.err;
  EXPECT_EQ(events_of(scratch / "run", "start").size(), 3u);
}

TEST(Launch, HasTheRunForItself) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), launch_args("run", 1, {"train.steps=1000000"}));
  ASSERT_TRUE(comes(60, [&] { return fs::exists(scratch / "run/launch/ranks/1"); }));
  const Result second = run(scratch, launch_args("run", 1));
  EXPECT_EQ(second.code, 2);
  EXPECT_TRUE(contains(second.err, "run/launch/lock is locked")) << second.err;
  program.send(SIGTERM);
  EXPECT_EQ(program.wait().code, 27);
}

// 63 documents of few words, and one that no model of them expects: it comes in step 35.
std::vector<std::string> poisoned_args(const Scratch& scratch, const std::string& directory,
                                       const std::vector<std::string>& more) {
  std::string lines;
  for (int document = 0; document < 64; ++document) {
    std::string text;
    uint32_t bits = 1;
    for (int i = 0; i < 300; ++i) {
      bits = bits * 1664525 + 1013904223;
      text += "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"[(bits >> 16) % 38];
    }
    if (document != 40) text = "the cat sat on the mat. the cat sat on the mat. ";
    if (document != 40) text += text;
    lines += "{\"text\": \"" + text + "\"}\n";
  }
  write_file(scratch / "poison.jsonl", lines);
  if (!fs::exists(scratch / "poison.bin"))
    run_ok(scratch, {"data", "prepare", "--input", "poison.jsonl", "--tokenizer", "byte", "--out",
                     "poison"});
  std::vector<std::string> args =
      run_args(directory, 1,
               {"data.train=poison", "data.num_streams=1", "train.eval_every=0", "train.steps=50",
                "checkpoint.every=5", "checkpoint.keep=100", "health.window=10",
                "health.max_norm_ratio=1e9", "launch.backoff_s=0"});
  args.insert(args.end(), more.begin(), more.end());
  args.insert(args.end(), {"train.global_batch=1"});
  return args;
}

// The run whose health check has no limit skips the step, and changes nothing in it either.
TEST(LaunchFaults, APoisonedSampleIsPassedOrEndsTheRun) {
  const Scratch scratch;
  run_ok(scratch, poisoned_args(scratch, "calm", {"health.max_skips_per_1000=1000"}));
  std::vector<std::string> args = poisoned_args(
      scratch, "run", {"health.max_skips_per_1000=1", "launch.on_numeric=skip_samples"});
  args[0] = "launch";
  const Result result = run(scratch, args);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same_end(scratch, 50);
  EXPECT_EQ(events_of(scratch / "run", "fault").at(0)["class"], "numeric");
  EXPECT_EQ(events_of(scratch / "run", "fault").size(), 1u);
  EXPECT_TRUE(read_file(scratch / "run/skips.jsonl").starts_with("{\"step\":35,\"samples\":[34],"));
  EXPECT_TRUE(contains(result.err, "is passed without an update")) << result.err;

  args = poisoned_args(scratch, "stopped", {"health.max_skips_per_1000=1"});
  args[0] = "launch";
  const Result stopped = run(scratch, args);
  EXPECT_EQ(stopped.code, 23) << stopped.err;
  EXPECT_FALSE(fs::exists(scratch / "stopped/skips.jsonl"));
}

// At another rate the health check begins a window anew, and the sample passes among its first.
TEST(LaunchFaults, ASpikeLowersTheRate) {
  const Scratch scratch;
  std::vector<std::string> args = poisoned_args(
      scratch, "run",
      {"health.max_skips_per_1000=1", "launch.on_numeric=lower_lr", "launch.lr_factor=0.25"});
  args[0] = "launch";
  const Result result = run(scratch, args);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, ", at 0.25 of the learning rate")) << result.err;
  EXPECT_TRUE(contains(result.err, "optim.lr was 0.002, is 0.0005")) << result.err;
  EXPECT_TRUE(contains(read_file(scratch / "run/launch/state.json"), "\"rate_factor\":0.25"));
}

// Its ranks save and end; the next launcher counts on.
TEST(LaunchFaults, AKilledLauncherLeavesItsCountsAndNoRank) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::string> args =
      launch_args("run", 1, {"train.steps=1000000", "launch.restarts=1"});
  {
    Program program(scratch.path(), args);
    const pid_t first = victim_of(scratch, program, "ASHLAR_ATTEMPT=1");
    kill(first, SIGKILL);
    ASSERT_TRUE(comes(60, [&] { return process_in(scratch.path(), "ASHLAR_ATTEMPT=2") > 0; }));
    program.send(SIGKILL);
    EXPECT_EQ(program.wait().signal, SIGKILL);
  }
  EXPECT_TRUE(comes(60, [&] { return process_in(scratch.path(), "ASHLAR_ATTEMPT=2") == 0; }));
  Program program(scratch.path(), args);
  pid_t third = 0;
  ASSERT_TRUE(comes(60, [&] {
    third = process_in(scratch.path(), "ASHLAR_ATTEMPT=3");
    return third > 0;
  }));
  kill(third, SIGKILL);
  const Result result = program.wait();
  EXPECT_EQ(result.code, 31) << result.err;
  EXPECT_TRUE(contains(result.err, "fault 2: ")) << result.err;
  EXPECT_TRUE(contains(result.err, "1 restarts (launch.restarts)")) << result.err;
}

// A rank that is held cannot save; the second signal does not wait for it.
TEST(LaunchFaults, ASecondSignalEndsAllWithoutSaving) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), launch_args("run", 1, {"train.steps=1000000"}));
  const pid_t victim = victim_of(scratch, program, "ASHLAR_ATTEMPT=1");
  kill(victim, SIGSTOP);
  program.send(SIGTERM);
  ASSERT_TRUE(comes(60, [&] { return has_event(scratch / "run", "preempt"); }));
  EXPECT_TRUE(comes(60, [&] {
    program.send(SIGTERM);
    return !program.running();
  }));
  EXPECT_EQ(program.wait().code, 28);
  kill(victim, SIGCONT);
  EXPECT_TRUE(comes(60, [&] { return process_in(scratch.path(), "ASHLAR_ATTEMPT=1") == 0; }));
}

TEST(Launch, StopsAtOnceForMemory) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, launch_args("run", 1, {"train.memory_limit_mib=1"}));
  EXPECT_EQ(result.code, 22) << result.err;
  EXPECT_EQ(events_of(scratch / "run", "fault").at(0)["class"], "memory");
  EXPECT_EQ(events_of(scratch / "run", "start").size(), 1u);
}

TEST(LaunchFaults, AKilledRankOfMpirunGoesOnBitForBit) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::string> steps{"train.steps=120"};
  ASSERT_EQ(run(scratch, launch_args("calm", 2, steps)).code, 0);
  const auto [result, named_after_s] =
      run_and_hurt(scratch, launch_args("run", 2, steps), "OMPI_COMM_WORLD_RANK=1", SIGKILL);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same_end(scratch, 120);
  EXPECT_TRUE(contains(result.err, "fault 1: rank 1: ended by signal 9 (Killed)")) << result.err;
  EXPECT_LT(named_after_s, 2) << "half a second where nothing else runs";
  EXPECT_TRUE(fs::exists(scratch / "run/launch/ranks/2/0.log"));
}

TEST(LaunchFaults, ASuspendedRankIsNamedAndReplaced) {
  const Scratch scratch;
  prepare_text(scratch);
  const std::vector<std::string> steps{"train.steps=120"};
  ASSERT_EQ(run(scratch, launch_args("calm", 2, steps)).code, 0);
  const auto [result, named_after_s] =
      run_and_hurt(scratch, launch_args("run", 2, steps), "OMPI_COMM_WORLD_RANK=1", SIGSTOP);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_same_end(scratch, 120);
  EXPECT_TRUE(contains(result.err, "of rank 1 is suspended (state T)")) << result.err;
  const auto fault = events_of(scratch / "run", "fault").at(0);
  EXPECT_EQ(fault["class"], "hang");
  EXPECT_EQ(fault["rank"], 1);
  EXPECT_GT(named_after_s, 3);
  EXPECT_LT(named_after_s, 8) << "5 s where nothing else runs";
}

// The control group of this process for memory, as version 1 has it; "": there is none.
std::string memory_group() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);)
    if (const size_t at = line.find(":memory:"); at != line.npos)
      return "/sys/fs/cgroup/memory" + line.substr(at + 8);
  return "";
}

// Takes memory of the group until the kernel has killed a process there.
[[noreturn]] void eat_memory_of(const fs::path& group) {
  for (;;) {
    std::memset(new char[1 << 20], 1, 1 << 20);
    if (!contains(read_file(group / "memory.oom_control"), "oom_kill 0")) _exit(0);
  }
}

TEST(LaunchFaults, ARankThatTheKernelKillsForMemoryIsStartedAgain) {
  const fs::path group = memory_group() + "/ashlar-launch-test";
  std::error_code error;
  fs::remove(group, error);  // of a test that was killed
  if (memory_group().empty() || (!fs::create_directory(group, error) && error))
    GTEST_SKIP() << "no control group of memory (version 1) can be made here";
  std::ofstream(group / "memory.limit_in_bytes") << (int64_t{256} << 20);
  const Scratch scratch;
  prepare_text(scratch);
  {
    const std::string procs = group / "cgroup.procs";
    const auto enter = [&] {
      const int fd = open(procs.c_str(), O_WRONLY);
      if (write(fd, "0", 1) != 1) _exit(126);
      close(fd);
    };
    Program program(scratch.path(), launch_args("run", 1, {"train.steps=1000000"}), enter);
    const pid_t victim = victim_of(scratch, program, "ASHLAR_ATTEMPT=1");
    std::ofstream(fmt::format("/proc/{}/oom_score_adj", victim)) << 1000;  // before all others
    const pid_t eater = fork();
    if (eater == 0) {
      enter();
      eat_memory_of(group);
    }
    waitpid(eater, nullptr, 0);
    EXPECT_TRUE(comes(60, [&] { return process_in(scratch.path(), "ASHLAR_ATTEMPT=2") > 0; }));
    program.send(SIGTERM);
    const Result result = program.wait();
    EXPECT_EQ(result.code, 27) << result.err;
    const auto faults = events_of(scratch / "run", "fault");
    ASSERT_EQ(faults.size(), 1u) << result.err;
    EXPECT_EQ(faults[0]["class"], "memory");
  }
  EXPECT_TRUE(fs::remove(group, error)) << error.message();
}

// A debugger holds the thread of a rank: to all others it looks as if it computed for ever.
TEST(LaunchFaults, AHangIsNamedWithRankPlaceAndCollective) {
  const Scratch scratch;
  prepare_text(scratch);
  Program program(scratch.path(), launch_args("run", 2, {"train.steps=120", "launch.hang_s=2"}));
  const pid_t victim = victim_of(scratch, program, "OMPI_COMM_WORLD_RANK=1");
  ASSERT_EQ(ptrace(PTRACE_SEIZE, victim, nullptr, nullptr), 0);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, victim, nullptr, nullptr), 0);
  int status = 0;
  EXPECT_TRUE(comes(60, [&] {  // also takes the news of its death, for which its parent waits
    waitpid(victim, &status, WNOHANG | __WALL);
    return !program.running();
  }));
  const Result result = program.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  // The thread was held before it had queued the operation, or while it moved its data.
  const auto fault = events_of(scratch / "run", "fault").at(0);
  if (fault["class"] == "hang") {
    EXPECT_EQ(fault["rank"], 1);
    EXPECT_TRUE(contains(result.err, "fault 1: rank 1 did not come to ")) << result.err;
    EXPECT_TRUE(contains(result.err, "rank 1 is in state t")) << result.err;
  } else {
    EXPECT_EQ(fault["class"], "fabric");
    EXPECT_TRUE(contains(result.err, "fault 1: all ranks have come to ")) << result.err;
  }
  EXPECT_GT(fault["detect_s"].get<double>(), 2);
  EXPECT_EQ(events_of(scratch / "run", "start").size(), 2u);
}

}  // namespace
}  // namespace ashlar::integration
