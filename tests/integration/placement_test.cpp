// The CPUs of the threads of a run, as the system shows them in /proc/PID/task.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <thread>

#include "ashlar/core/affinity.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

// The CPUs of each thread of a process, in any order.
std::vector<Cpus> masks_of(pid_t process) {
  std::vector<Cpus> masks;
  for (const auto& thread :
       fs::directory_iterator(fs::path("/proc") / std::to_string(process) / "task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("Cpus_allowed_list:"))
        masks.push_back(parse_cpus(line.substr(line.find_last_of("\t ") + 1)));
  }
  return masks;
}

// CPUs that some thread is bound to alone.
std::set<int> single_cpus(const std::vector<Cpus>& masks) {
  std::set<int> cpus;
  for (const Cpus& mask : masks)
    if (mask.size() == 1) cpus.insert(mask[0]);
  return cpus;
}

// A run that goes on for long, after its first step.
class LongRun {
 public:
  explicit LongRun(const Scratch& scratch, std::vector<std::string> more,
                   const std::vector<std::string>& launcher = {},
                   const std::function<void()>& before_exec = {})
      : program_(scratch.path(), args(std::move(more)), before_exec, launcher) {
    const fs::path metrics = scratch / "r/metrics.jsonl";
    std::error_code error;
    for (int i = 0; i < 1000 && program_.running(); ++i) {
      if (fs::file_size(metrics, error) > 0 && !error) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "no step was done";
  }
  ~LongRun() {
    program_.send(SIGTERM);
    program_.wait();
  }
  pid_t pid() const { return program_.pid(); }

 private:
  static std::vector<std::string> args(std::vector<std::string> more) {
    std::vector<std::string> all = run_args(
        "r", 1, {"train.steps=1000000", "checkpoint.every=1000000", "train.eval_every=1000000"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Program program_;
};

class PlacementOfRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    if (usable_.size() < 2) GTEST_SKIP() << "one CPU: there is nothing to place";
    prepare_text(scratch_);
  }
  const Cpus usable_ = usable_cpus();
  const Scratch scratch_;
};

TEST_F(PlacementOfRuns, ThreadsOfKernelsHaveCpusOfTheirOwn) {
  const LongRun run(scratch_, {"--ranks", "2", "--bind-to", "core"});
  const std::vector<Cpus> masks = masks_of(run.pid());
  EXPECT_EQ(single_cpus(masks).size(), usable_.size() / 2 * 2);
  EXPECT_GT(std::count_if(masks.begin(), masks.end(), [](const Cpus& m) { return m.size() > 1; }),
            2)
      << "lanes and loaders are not bound to one CPU";
}

TEST_F(PlacementOfRuns, BindToNoneLeavesThemAll) {
  const LongRun run(scratch_, {"--ranks", "2", "--bind-to", "none"});
  for (const Cpus& mask : masks_of(run.pid())) EXPECT_EQ(mask, usable_);
}

TEST_F(PlacementOfRuns, TasksetIsObeyed) {
  const int last = usable_.back();
  const LongRun run(scratch_, {"--ranks", "2"}, {}, [last] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(last, &set);
    sched_setaffinity(0, sizeof set, &set);
  });
  for (const Cpus& mask : masks_of(run.pid())) EXPECT_EQ(mask, Cpus{last});
}

TEST_F(PlacementOfRuns, ProcessesOfOneSetDivideIt) {
  const LongRun run(scratch_, {"--bind-to", "core"}, mpirun(2));
  Cpus taken;
  for (const int rank : {0, 1}) {
    const Cpus own = masks_of(process_of_rank(run.pid(), rank))[0];  // of the first thread
    EXPECT_FALSE(own.empty());
    EXPECT_TRUE(common_cpus(taken, own).empty()) << cpus_text(taken) << " and " << cpus_text(own);
    taken = own;
  }
}

TEST_F(PlacementOfRuns, ProcessesWithBindToNoneAreLeft) {
  const LongRun run(scratch_, {"--bind-to", "none"}, mpirun(2));
  for (const int rank : {0, 1})
    for (const Cpus& mask : masks_of(process_of_rank(run.pid(), rank))) EXPECT_EQ(mask, usable_);
}

TEST(Placement, OtherWordsOfBindToAreRefused) {
  const Scratch scratch;
  const Result result = run(scratch, {"bench", "smoke", "--bind-to", "socket"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "--bind-to is socket; expected l3cache, core or none"))
      << result.err;
}

}  // namespace
}  // namespace ashlar::integration
