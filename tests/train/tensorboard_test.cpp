#include "ashlar/train/records/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/support/bytes.h"

namespace ashlar::train {
namespace {

using ashlar::testing_support::hex;

std::string version_record(double wall_time_s) {
  std::string out;
  append_version_record(out, wall_time_s);
  return out;
}

std::string scalar_record(double wall_time_s, int64_t step, std::string_view tag, float value) {
  std::string out;
  append_scalar_record(out, wall_time_s, step, tag, value);
  return out;
}

TEST(TensorBoard, KnownRecords) {
  EXPECT_EQ(hex(version_record(1.0)),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(scalar_record(1.0, 7, "loss", 3.5f)),
            "1a00000000000000129bd82d09000000000000f03f10072a0d0a0b0a046c6f73731500006040580acbb9");
}

// Step 300 and SessionLog {status: START}: 10 ac 02, 3a 02 08 01.
TEST(TensorBoard, AStartNamesItsFirstStep) {
  std::string out;
  append_start_record(out, 1.0, 300);
  EXPECT_EQ(hex(out).substr(24, 32), "09000000000000f03f10ac023a020801");
  EXPECT_EQ(hex(out).substr(0, 16), "1000000000000000");
}

// Readers take files by name: that of a start in the same second comes behind.
TEST(TensorBoard, EveryStartHasAFileOfItsOwn) {
  const auto files = memory_files();
  Log log([](std::string_view) {});
  for (const int64_t first_step : {1, 5, 9}) {
    TensorBoard board(*files, "run/tensorboard", first_step, log);
    board.hand_over();
  }
  const auto names = files->list("run/tensorboard");
  ASSERT_EQ(names.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    std::string expected = version_record(1.0);
    append_start_record(expected, 1.0, int64_t(1 + 4 * i));
    const std::string text = read_text(*files, "run/tensorboard/" + names[i]);
    ASSERT_EQ(text.size(), expected.size());
    EXPECT_EQ(text[text.size() - 9], expected[expected.size() - 9]) << names[i];  // the step
  }
}

TEST(TensorBoard, FilesHoldWholeRecords) {
  const auto files = memory_files();
  std::string start;
  append_start_record(start, 1.0, 1);
  {
    Log log([](std::string_view) {});
    TensorBoard board(*files, "run/tensorboard", 1, log);
    board.scalar(1, "loss", 2.0);
    board.hand_over();
    board.scalar(2, "loss", 1.0);
    board.hand_over();
  }
  const auto names = files->list("run/tensorboard");
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].starts_with("events.out.tfevents.")) << names[0];
  const std::string text = read_text(*files, "run/tensorboard/" + names[0]);
  EXPECT_EQ(text.size(),
            version_record(1).size() + start.size() + 2 * scalar_record(1, 1, "loss", 1).size());
}

}  // namespace
}  // namespace ashlar::train
