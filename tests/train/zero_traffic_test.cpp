// Bytes and launches of ZeRO over a whole step are the formulas of parallel/zero.h, as integers, on
// real ranks and recorded.
#include "tests/train/step_traffic.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

struct ZeroSettings {
  int ranks, stage;
  std::string layout, bucket_bytes;
  int micro_batches, layers;
  bool recompute, overlap;
  const char* precision = "fp32";
};

std::string describe(const ZeroSettings& s) {
  return fmt::format("{} ranks, stage {}, {}, buckets of {}, {} micro-batches, {} layers, {}{}{}",
                     s.ranks, s.stage, s.layout, s.bucket_bytes, s.micro_batches, s.layers,
                     s.precision, s.recompute ? ", recompute" : "", s.overlap ? ", overlap" : "");
}

Recipe recipe_of(const ZeroSettings& s) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return load_recipe(
      ASHLAR_FIXTURES "/recipes/tiny.toml",
      std::vector<std::string>{
          fmt::format("model.num_hidden_layers={}", s.layers), "model.hidden_size=24",
          "model.vocab_size=50", "model.moe_intermediate_size=20", "data.sequence_length=6",
          "train.micro_batch=1", fmt::format("train.global_batch={}", s.ranks * s.micro_batches),
          fmt::format("train.recompute={}", flag(s.recompute)),
          std::string("train.precision=") + s.precision, "optim.matrices=adamw",
          fmt::format("parallel.dp={}", s.ranks), fmt::format("parallel.zero={}", s.stage),
          "parallel.zero_layout=" + s.layout, "parallel.bucket_bytes=" + s.bucket_bytes,
          fmt::format("parallel.overlap={}", flag(s.overlap))});
}

void expect_formula(const ZeroSettings& s) {
  SCOPED_TRACE(describe(s));
  const Recipe recipe = recipe_of(s);
  on_all_ranks(recipe, nn::resolve_precision(recipe.train.precision), s.ranks,
               [](const Steps& steps, Traffic traffic) {
                 std::erase_if(traffic, [](const auto& row) {
                   const std::string& label = std::get<2>(row.first);
                   return label != "gradients" && label != "weights";
                 });
                 EXPECT_EQ(traffic, zero_formula(steps.trainer()));
               });
}

class ZeroTraffic : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroTraffic, testing::Values(1, 2, 3, 4));

TEST_P(ZeroTraffic, RealAndRecordedCountersAreTheFormulas) {
  for (const int stage : {0, 1, 2, 3})
    for (const char* layout : {"contiguous", "bucketed"})
      for (const char* bucket_bytes : {"3000", "20000", "100000000"})
        for (const int micro_batches : {1, 3})
          for (const bool recompute : {false, true})
            for (const bool overlap : {false, true})
              expect_formula(
                  {GetParam(), stage, layout, bucket_bytes, micro_batches, 5, recompute, overlap});
}

// Weights travel as products read them; fewer blocks than slots, as many, one more.
TEST_P(ZeroTraffic, HoldsInAllTypesForAnyNumberOfBlocks) {
  for (const char* precision : {"bf16", "fp64"})
    for (const int layers : {1, 2, 3, 6})
      for (const int stage : {1, 2, 3})
        for (const bool recompute : {false, true})
          expect_formula(
              {GetParam(), stage, "bucketed", "5000", 2, layers, recompute, true, precision});
}

}  // namespace
}  // namespace ashlar::train
