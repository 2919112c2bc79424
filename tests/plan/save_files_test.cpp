// How many files a step has, how large they are, and how even its writers: every layout of the
// parity table, and ZAYA1-8B on 8, 64 and 1,024 ranks.
//
//   bars   at most 4 files of model and optimizer a writer; files of 64 MiB on average, or all
//          ranks on one node of 16; index.bin of at most 16 MB; the busiest writer at most 1.05
//          times the mean, or a part of the least size (tensor/pieces.h) of both components more
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "ashlar/plan/checkpoint.h"
#include "ashlar/tensor/pieces.h"
#include "tests/support/errors.h"
#include "tests/train/parity_models.h"

namespace ashlar::plan {
namespace {

using namespace train;
using checkpoint::StepSize;

constexpr int64_t kMostFiles = 4, kMostIndexBytes = 16'000'000;
constexpr int kRanksOfNode = 16;
constexpr double kLeastMeanFile = 64.0 * (1 << 20), kMostOfMean = 1.05;

std::string line_of(const std::string& name, const StepSize& s) {
  return fmt::format(
      "{:<44} {:>3} files a writer, mean {:>9.2f} MiB, index {:>10} B, busiest "
      "{:.3f} x mean, {:>4} boxes",
      name, s.max_writer_files, double(s.data_bytes) / double(s.data_files) / (1 << 20),
      s.index_bytes, double(s.max_writer_bytes) / s.mean_writer_bytes, s.max_writer_boxes);
}

void expect_bars(const std::string& name, int num_ranks, const StepSize& s) {
  SCOPED_TRACE(line_of(name, s));
  const double busiest = double(s.max_writer_bytes);
  EXPECT_LE(s.max_writer_files, kMostFiles);
  EXPECT_TRUE(num_ranks <= kRanksOfNode ||
              double(s.data_bytes) >= kLeastMeanFile * double(s.data_files));
  EXPECT_TRUE(busiest <= kMostOfMean * s.mean_writer_bytes ||
              busiest <= s.mean_writer_bytes + 2.0 * double(kMinPartBytes));
  EXPECT_LE(s.index_bytes, kMostIndexBytes);
}

TEST(SaveFiles, OfEveryLayoutOfTheParityTable) {
  for (const ParityCase& c : parity_cases()) {
    const Recipe recipe = parity_recipe(c, "fp32", true);
    expect_bars(c.name, c.num_ranks,
                plan_checkpoint(recipe, DType::kF32, c.num_ranks, 1, kRanksOfNode));
  }
}

struct LargeCase {
  std::string name;
  int num_ranks;
  Overrides keys;
  bool long_test = false;
  int ranks_of_node = kRanksOfNode;
};

void PrintTo(const LargeCase& c, std::ostream* out) {
  *out << c.name;
}

Overrides zero(int stage) {
  return {"parallel.zero=" + std::to_string(stage)};
}
Overrides tp(int ranks, int stage = 1) {
  return {"parallel.tp=" + std::to_string(ranks), "parallel.zero=" + std::to_string(stage)};
}

const std::vector<LargeCase> kLarge = {
    {"dp8_zero0", 8, zero(0)},
    {"dp8_zero1", 8, zero(1)},
    {"dp8_zero3", 8, zero(3)},
    {"dp4_tp2_zero1", 8, tp(2)},
    {"dp4_tp2_zero0", 8, tp(2, 0)},
    {"tp8", 8, tp(8)},
    {"dp8_ep8_zero1", 8, {"parallel.ep=8"}},
    {"dp64_zero0", 64, zero(0)},
    {"dp64_zero1", 64, zero(1)},
    {"dp64_zero3", 64, zero(3)},
    {"dp32_tp2_zero1", 64, tp(2)},
    {"dp8_tp8_zero1", 64, tp(8)},
    {"dp8_tp8_zero0", 64, tp(8, 0)},
    {"dp64_ep8_zero1", 64, {"parallel.ep=8"}},
    // One writer a machine.
    {"dp1024_zero0", 1024, zero(0)},
    {"dp1024_zero1", 1024, zero(1)},
    {"dp512_tp2_zero1", 1024, tp(2), true},
    // Each tp rank writes a part of what all of them keep in the blocks (routers, key heads), and
    // whoever has less of it writes more.
    {"dp128_tp8_zero1", 1024, tp(8), true},
    // A machine keeps 5/4 of an expert in each of the 8 sets that ranks of ep divide, of different
    // blocks (parallel::expert_shard).
    {"dp1024_ep8_zero1", 1024, {"parallel.ep=8"}, true},
    {"dp1024_zero0_nodes_of_8", 1024, zero(0), false, 8},
    {"dp1024_zero1_nodes_of_8", 1024, zero(1), false, 8},
    {"dp512_tp2_zero1_nodes_of_8", 1024, tp(2), true, 8},
    {"dp128_tp8_zero1_nodes_of_8", 1024, tp(8), true, 8},
    {"dp1024_ep8_zero1_nodes_of_8", 1024, {"parallel.ep=8"}, true, 8},
};

class SaveFilesOfZaya1 : public testing::TestWithParam<LargeCase> {};

TEST_P(SaveFilesOfZaya1, AreFewAndEven) {
  const LargeCase& c = GetParam();
  if (c.long_test && !std::getenv("ASHLAR_LONG_TESTS"))
    GTEST_SKIP() << "takes up to a minute; set ASHLAR_LONG_TESTS=1 to run it";
  const Recipe recipe = load_recipe(
      ASHLAR_FIXTURES "/../../recipes/zaya1-8b.toml",
      joined({"data.num_streams=4096", "train.threads=1", "train.precision=fp32"}, c.keys));
  const StepSize size = plan_checkpoint(recipe, DType::kF32, c.num_ranks, 1, c.ranks_of_node);
  fmt::print("{}\n", line_of(c.name, size));
  expect_bars(c.name, c.num_ranks, size);
}

// A slice of every bucket: of the largest tensor as many boxes as it has buckets.
TEST(SaveFiles, TooManyAreRefusedWithTheirCount) {
  const Overrides keys = {"data.num_streams=4096", "train.threads=1", "train.precision=fp32",
                          "parallel.zero=1", "parallel.zero_layout=bucketed"};
  const Recipe recipe = load_recipe(ASHLAR_FIXTURES "/../../recipes/zaya1-8b.toml", keys);
  const std::string message = ashlar::testing_support::message_of(
      ErrorKind::kConfig, [&] { plan_checkpoint(recipe, DType::kF32, 8, 1); });
  EXPECT_TRUE(message.starts_with("a checkpoint would have ")) << message;
  EXPECT_NE(message.find(" files of one writer, "), message.npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Zaya1, SaveFilesOfZaya1, testing::ValuesIn(kLarge),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ashlar::plan
