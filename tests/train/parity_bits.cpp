// ZeRO's stages and layouts are the same arithmetic: the same bits, where clipping does not look at
// a norm whose order of summation differs.
#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/train/parity.h"

namespace ashlar::train {
namespace {

// types: a precision, or bf16_stream: that of products and of the stream.
std::vector<double> losses_on_two_ranks(const std::string& types,
                                        const std::vector<std::string>& layout) {
  const bool narrow = types == "bf16_stream";
  const std::string precision = narrow ? "bf16" : types;
  ParityCase c{"", 2, layout, {"optim.clip_norm=0", "train.micro_batch=4"}, false};
  if (narrow) c.model.push_back("train.stream=bf16");
  std::vector<double> losses[2];
  Allocator allocator(Device::kCpu);
  comm::run_ranks(2, {}, allocator, [&](comm::Group& ranks) {
    losses[ranks.rank()] = train_losses(c, precision, 6, ranks);
  });
  EXPECT_EQ(losses[0], losses[1]);
  return losses[0];
}

class SameBits : public testing::TestWithParam<std::string> {};

TEST_P(SameBits, InEveryStageAndLayout) {
  const std::vector<double> want = losses_on_two_ranks(GetParam(), {"parallel.zero=0"});
  EXPECT_LT(want.back(), want.front());
  for (const char* zero : {"1", "2", "3"})
    for (const char* layout : {"contiguous", "bucketed"})
      for (const char* overlap : {"true", "false"}) {
        SCOPED_TRACE(fmt::format("zero {} {} overlap {}", zero, layout, overlap));
        EXPECT_EQ(losses_on_two_ranks(GetParam(), {fmt::format("parallel.zero={}", zero),
                                                   fmt::format("parallel.zero_layout={}", layout),
                                                   fmt::format("parallel.overlap={}", overlap),
                                                   "parallel.bucket_bytes=30000"}),
                  want);
      }
}

// Ranks that share heads and sequences: what is kept and what is made again are the same bits, as
// are two runs.
TEST_P(SameBits, WithTspRecomputedAndRepeated) {
  const auto losses = [&](const char* recompute) {
    return losses_on_two_ranks(
        GetParam(), {"parallel.tsp=2", "model.layer_types=full_attention", "model.qk_norm=rms",
                     "model.intermediate_size=40", std::string("train.recompute=") + recompute});
  };
  const std::vector<double> kept = losses("false");
  EXPECT_LT(kept.back(), kept.front());
  EXPECT_EQ(losses("true"), kept);
  EXPECT_EQ(losses("false"), kept);
}

INSTANTIATE_TEST_SUITE_P(Fast, SameBits, testing::Values("fp32", "bf16", "bf16_stream", "fp64"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ashlar::train
