// Bytes and launches of ZeRO over a whole step are the formulas of parallel/zero.h, as integers, on
// real ranks and recorded.
#include "step_traffic.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using comm::Op;

struct Settings {
  int ranks, stage;
  std::string layout, bucket_bytes;
  int micro_batches, layers;
  bool recompute, overlap;
  const char* precision = "fp32";
};

std::string describe(const Settings& s) {
  return fmt::format("{} ranks, stage {}, {}, buckets of {}, {} micro-batches, {} layers, {}{}{}",
                     s.ranks, s.stage, s.layout, s.bucket_bytes, s.micro_batches, s.layers,
                     s.precision, s.recompute ? ", recompute" : "", s.overlap ? ", overlap" : "");
}

Recipe recipe_of(const Settings& s) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  return load_recipe(
      ASHLAR_TEST_DATA "/recipes/tiny.toml",
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

// Every bucket of a unit once.
Moved unit_once(const Trainer& trainer, int64_t unit, Op op, DType dtype) {
  const comm::Group& data = trainer.groups().data();
  const ParallelSpec& spec = trainer.parallel();
  const nn::FlatLayout& flat = trainer.model().flat();
  const int64_t stream = size_of(trainer.model().types().stream), width = size_of(dtype);
  const parallel::Shards shards(flat.unit_numel, data.size(), spec.zero_layout,
                                std::max<int64_t>(1, spec.bucket_bytes / stream),
                                Arena::kAlign / stream);
  Moved sum;
  for (int64_t b = 0; b < shards.num_buckets(unit); ++b) {
    const int64_t numel = shards.bucket(unit, b).size();
    sum += op == Op::kAllReduce ? moved_evenly(op, data.size(), data.rank(), numel, width)
                                : moved(op, data.size(), numel * width,
                                        shards.piece(unit, b, data.rank()).size() * width);
  }
  return sum;
}

// The table of zero.h.
Traffic formula(const Trainer& trainer) {
  const int64_t L = trainer.recipe().model.num_hidden_layers, m = trainer.micro_batches_per_step();
  const int64_t stage = trainer.parallel().zero;
  const nn::Types& types = trainer.model().types();
  Traffic traffic;
  if (trainer.groups().data().size() == 1) return traffic;
  const Op sum = stage == 0 ? Op::kAllReduce : Op::kReduceScatter;
  for (int64_t l = 0; l <= L; ++l) {
    const int64_t reduced = l > 0 && stage >= 2 ? m : 1;
    const int64_t gathered =
        l > 0 && stage == 3 ? 1 + (l > 2 ? m - 1 : 0) + (l < L - 1 ? m : 0) : 1;
    traffic[{"data", sum, "gradients"}] += reduced * unit_once(trainer, l, sum, types.stream);
    if (stage > 0)
      traffic[{"data", Op::kAllGather, "weights"}] +=
          gathered *
          unit_once(trainer, l, Op::kAllGather, l == 0 ? types.stream : types.activation);
  }
  return traffic;
}

void expect_formula(const Settings& s) {
  SCOPED_TRACE(describe(s));
  const Recipe recipe = recipe_of(s);
  on_all_ranks(recipe, resolve_precision(recipe.train.precision), s.ranks,
               [](const Steps& steps, Traffic traffic) {
                 std::erase_if(traffic, [](const auto& row) {
                   const std::string& label = std::get<2>(row.first);
                   return label != "gradients" && label != "weights";
                 });
                 EXPECT_EQ(traffic, formula(steps.trainer()));
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
