// Programs of a step and the uses of units that follow from them.
#include "ashlar/parallel/program.h"

#include <gtest/gtest.h>

namespace ashlar::parallel {
namespace {

using Kind = Action::Kind;
using Why = nn::Use::Why;

TEST(Program, OneStageRunsEachMicroBatchForwardAndBackward) {
  const std::vector<Action> expected = {{Kind::kForward, 0, 0},
                                        {Kind::kBackward, 0, 0},
                                        {Kind::kForward, 0, 1},
                                        {Kind::kBackward, 0, 1}};
  EXPECT_EQ(one_stage(2), expected);
}

TEST(Program, UsesFollowTheWalksOverTheBlocks) {
  const std::vector<nn::Use> kept = {
      {Why::kForward, 1}, {Why::kForward, 2}, {Why::kBackward, 2}, {Why::kBackward, 1}};
  EXPECT_EQ(uses_of(one_stage(1), 2, false), kept);
  const std::vector<nn::Use> again = {{Why::kForward, 1},
                                      {Why::kForward, 2},
                                      {Why::kBackward, 2},
                                      {Why::kReplay, 1},
                                      {Why::kBackward, 1}};
  EXPECT_EQ(uses_of(one_stage(1), 2, true), again);
  const Action forward{Kind::kForward, 0, 0};
  EXPECT_EQ(uses_of(std::span(&forward, 1), 3, true).size(), 3u);
  EXPECT_EQ(uses_of(one_stage(3), 2, false).size(), 12u);
}

}  // namespace
}  // namespace ashlar::parallel
