#include "ashlar/train/tensorboard.h"

#include <gtest/gtest.h>

#include "tests/support/bytes.h"

namespace ashlar::train {
namespace {

using testing_support::hex;

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

TEST(TensorBoard, FilesHoldWholeRecords) {
  const auto files = memory_files();
  {
    TensorBoard board(*files, "run/tensorboard");
    board.scalar(1, "loss", 2.0);
    board.flush();
    board.scalar(2, "loss", 1.0);
    board.flush();
  }
  const auto names = files->list("run/tensorboard");
  ASSERT_EQ(names.size(), 1u);
  EXPECT_TRUE(names[0].starts_with("events.out.tfevents.")) << names[0];
  const std::string text = read_text(*files, "run/tensorboard/" + names[0]);
  EXPECT_EQ(text.size(), version_record(1).size() + 2 * scalar_record(1, 1, "loss", 1).size());
}

}  // namespace
}  // namespace ashlar::train
