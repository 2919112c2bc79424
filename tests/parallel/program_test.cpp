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
  const nn::BlockRange two[] = {{0, 2}}, three[] = {{0, 3}};
  const std::vector<nn::Use> kept = {
      {Why::kForward, 0}, {Why::kForward, 1}, {Why::kBackward, 1}, {Why::kBackward, 0}};
  EXPECT_EQ(uses_of(one_stage(1), two, false), kept);
  const std::vector<nn::Use> again = {{Why::kForward, 0},
                                      {Why::kForward, 1},
                                      {Why::kBackward, 1},
                                      {Why::kRecompute, 0},
                                      {Why::kBackward, 0}};
  EXPECT_EQ(uses_of(one_stage(1), two, true), again);
  const Action forward{Kind::kForward, 0, 0};
  EXPECT_EQ(uses_of(std::span(&forward, 1), three, true).size(), 3u);
  EXPECT_EQ(uses_of(one_stage(3), two, false).size(), 12u);
}

// A block that ran last of another micro-batch, or of another chunk, runs forward again too; what a
// chunk does with its weights alone reads no operands, block by block as its backward.
TEST(Program, UsesOfChunksAndOfSplitBackward) {
  const nn::BlockRange chunks[] = {{0, 1}, {3, 5}};
  const std::vector<Action> program = {{Kind::kForward, 0, 0},         {Kind::kForward, 1, 0},
                                       {Kind::kReceiveBackward, 1, 0}, {Kind::kForward, 0, 1},
                                       {Kind::kBackward, 1, 0},        {Kind::kBackward, 0, 0},
                                       {Kind::kForward, 1, 1},         {Kind::kBackward, 1, 1}};
  const std::vector<nn::Use> expected = {
      {Why::kForward, 0},   {Why::kForward, 3},   {Why::kForward, 4},   {Why::kForward, 0},
      {Why::kRecompute, 4}, {Why::kBackward, 4},  {Why::kRecompute, 3}, {Why::kBackward, 3},
      {Why::kRecompute, 0}, {Why::kBackward, 0},  {Why::kForward, 3},   {Why::kForward, 4},
      {Why::kBackward, 4},  {Why::kRecompute, 3}, {Why::kBackward, 3}};
  EXPECT_EQ(uses_of(program, chunks, true), expected);
  const std::vector<Action> split = {{Kind::kInputs, 1, 0}, {Kind::kWeights, 1, 0}};
  const std::vector<nn::Use> parts = {
      {Why::kInputs, 4}, {Why::kInputs, 3}, {Why::kWeights, 4}, {Why::kWeights, 3}};
  EXPECT_EQ(uses_of(split, chunks, false), parts);
  EXPECT_FALSE(parts[0].makes_gradients());
  EXPECT_FALSE(parts[2].reads_operands());
}

}  // namespace
}  // namespace ashlar::parallel
