// A run that is killed again and again: whatever the moment, no row of a step is lost or repeated.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> endless(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train.steps=1000000", "train.eval_every=7", "train.log_every=1000",
                             "checkpoint.every=5", "health.max_norm_ratio=1e9",
                             "health.max_loss_rise=1e9", "train.precision=fp32"});
  return train_args(more);
}

int64_t newest_step(const fs::path& run) {
  int64_t newest = 0;
  std::error_code none;
  for (fs::directory_iterator at(run / "checkpoints", none), end; at != end; ++at)
    if (at->path().filename().string().starts_with("step-"))
      newest = std::max(newest, int64_t(std::stoll(at->path().filename().string().substr(5))));
  return newest;
}

// Steps in the order of the rows of metrics.jsonl; a kill may have cut the last line short.
std::vector<int64_t> steps_of_rows(const fs::path& run) {
  std::vector<int64_t> steps;
  if (!fs::exists(run / "metrics.jsonl")) return steps;
  const std::string text = read_file(run / "metrics.jsonl");
  constexpr std::string_view kHead = "{\"step\":";
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
    if (text.compare(begin, kHead.size(), kHead) == 0)
      steps.push_back(std::stoll(text.substr(begin + kHead.size(), 20)));
  return steps;
}

std::vector<int64_t> from_one_to(int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step) steps.push_back(step);
  return steps;
}

// Fields 2 (step), 5 (summary) and 7 (session start) of an Event, after its wall time.
struct BoardEvent {
  int64_t step = 0;
  bool starts = false, is_loss = false;
};
BoardEvent parse_event(std::string_view data) {
  BoardEvent event;
  size_t at = 9;
  if (data[at] != 0x10) return event;  // the version record
  ++at;
  for (int shift = 0;; shift += 7) {
    const auto byte = uint8_t(data[at++]);
    event.step |= int64_t(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  event.starts = data.substr(at) == std::string_view("\x3a\x02\x08\x01", 4);
  event.is_loss = data.find("\x0a\x04loss\x15") != data.npos;
  return event;
}

// Steps of "loss" as TensorBoard shows them: file by file, a start forgets what it does again.
std::vector<int64_t> steps_on_board(const fs::path& run) {
  std::vector<int64_t> steps;
  for (const auto& [name, bytes] : read_tree(run / "tensorboard"))  // by name
    for (size_t at = 0; at + 12 <= bytes.size();) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      if (at + 16 + length > bytes.size()) break;  // cut short by the kill
      const BoardEvent event = parse_event(std::string_view(bytes).substr(at + 12, length));
      if (event.starts) std::erase_if(steps, [&](int64_t step) { return step >= event.step; });
      if (event.is_loss) steps.push_back(event.step);
      at += 16 + length;
    }
  return steps;
}

TEST(Kill, EveryStepKeepsItsOneRow) {
  const Scratch scratch;
  prepare_text(scratch);
  const fs::path directory = scratch / "run";
  std::mt19937 random(20250102);
  int killed = 0;
  int64_t before = 0;
  for (int attempt = 0; attempt < 24; ++attempt) {
    const std::string async = attempt % 4 == 3 ? "checkpoint.async=false" : "checkpoint.async=true";
    Program program(scratch.path(), endless({async}));
    // After the first new checkpoint every moment is as good, the ones of a commit too.
    while (newest_step(directory) <= before && program.running())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    program.send(SIGKILL);
    ASSERT_EQ(program.wait().signal, SIGKILL) << program.wait().err;
    ++killed;
    const int64_t newest = newest_step(directory);
    ASSERT_GT(newest, before);
    before = newest;
    const std::vector<int64_t> steps = steps_of_rows(directory);
    ASSERT_GE(int64_t(steps.size()), newest) << "rows are missing before the step to continue from";
    ASSERT_EQ(steps, from_one_to(int64_t(steps.size()))) << "after kill " << killed;
  }
  const int64_t last = before + 20;
  run_ok(scratch, endless({fmt::format("train.steps={}", last)}));
  EXPECT_EQ(steps_of_rows(directory), from_one_to(last));
  EXPECT_EQ(steps_on_board(directory), from_one_to(last));
}

}  // namespace
}  // namespace ashlar::integration
