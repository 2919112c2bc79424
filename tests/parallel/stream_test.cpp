// A residual stream in bf16 (train.stream): layouts against one rank, and what it saves.
#include <gtest/gtest.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

Recipe stream_recipe(StreamType stream, bool dense, bool recompute, int num_blocks = 4) {
  ModelKeys keys = spec_with_heads(8, 4);
  keys.hidden_size = 32;  // rows in whole lines: nothing is padded
  keys.num_hidden_layers = num_blocks;
  keys.layer_types.assign(size_t(num_blocks),
                          dense ? LayerType::kFullAttention : LayerType::kHybrid);
  if (dense) {
    keys.residual = Residual::kPlain;
    keys.intermediate_size = 24;
    keys.tie_word_embeddings = false;  // two stages would add to one gradient
  }
  Recipe recipe = recipe_of(keys, 2, 32);
  recipe.train.stream = stream;
  recipe.train.recompute = recompute;
  return recipe;
}

struct StreamNumbers {
  Whole gradients;
  double loss = 0;
};

StreamNumbers numbers_of(const Recipe& recipe, int num_ranks, DType compute) {
  const Batch batch = batch_of({{32}, {11, 21}}, recipe.model.vocab_size);
  std::vector<std::vector<Element>> gradients{size_t(num_ranks)};
  std::vector<double> losses(size_t(num_ranks), 0.0);
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(recipe, world, {.compute = compute});
    rank.step(batch);
    const auto here = size_t(world.rank());
    losses[here] = rank.model.over_ranks(rank.model.losses(), "losses").sum;
    gradients[here] = elements_of_gradients(rank.model);
  });
  return {put_together(gradients), losses[0]};
}

// Relative, in the Frobenius norm.
double stream_error_of(const std::vector<double>& got, const std::vector<double>& want) {
  double gap = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i)
    gap += std::pow(got[i] - want[i], 2), size += std::pow(want[i], 2);
  return size > 0 ? std::sqrt(gap / size) : gap;
}

std::vector<double> all_of(const Whole& gradients) {
  std::vector<double> all;
  for (const auto& [name, values] : gradients) all.insert(all.end(), values.begin(), values.end());
  return all;
}

struct StreamLayout {
  const char* name;
  int ranks;
  void (*set)(ParallelSpec&);
};
constexpr StreamLayout kLayouts[] = {
    {"tp 2", 2, [](ParallelSpec& p) { p.tp = 2; }},
    {"tp 2, a shared stream", 2, [](ParallelSpec& p) { p.tp = 2, p.sequence_parallel = true; }},
    {"cp 2", 2, [](ParallelSpec& p) { p.cp = 2; }},
    {"cp 2 around a ring", 2, [](ParallelSpec& p) { p.cp = 2, p.cp_exchange = CpExchange::kRing; }},
    {"tsp 2", 2, [](ParallelSpec& p) { p.tsp = 2; }},
    {"tsp 4", 4, [](ParallelSpec& p) { p.tsp = 4; }},
};

// All gradients together are within 1e-2 of one rank's, and each tensor's at most twice as far from
// fp64.  Small, so that roundings stay what they are: deeper models amplify them.
TEST(StreamType, LayoutsAgreeWithOneRank) {
  for (const bool dense : {true, false}) {
    const auto small = [&](StreamType stream) {
      Recipe recipe = stream_recipe(stream, dense, true, 1);
      recipe.model.hidden_size = 10;
      return recipe;
    };
    const StreamNumbers exact = numbers_of(small(StreamType::kF32), 1, DType::kF64);
    const StreamNumbers one = numbers_of(small(StreamType::kBF16), 1, DType::kBF16);
    for (const StreamLayout& layout : kLayouts) {
      Recipe recipe = small(StreamType::kBF16);
      layout.set(recipe.parallel);
      SCOPED_TRACE(fmt::format("{}, {}", layout.name, dense ? "dense" : "cca and experts"));
      const StreamNumbers got = numbers_of(recipe, layout.ranks, DType::kBF16);
      EXPECT_NEAR(got.loss, one.loss, 1e-3 * one.loss);
      EXPECT_LE(stream_error_of(all_of(got.gradients), all_of(one.gradients)), 1e-2);
      for (const auto& [name, want] : exact.gradients) {
        const double own = stream_error_of(one.gradients.at(name), want);
        EXPECT_LE(stream_error_of(got.gradients.at(name), want), 2 * own + 1e-12) << name;
      }
    }
  }
}

// A stage hands the next what one rank's kernels read, and recomputing gives the same again.
TEST(StreamType, PipelinesAndRecomputationKeepEveryBit) {
  for (const bool dense : {true, false}) {
    const StreamNumbers want =
        numbers_of(stream_recipe(StreamType::kBF16, dense, false), 1, DType::kBF16);
    for (const int stages : {1, 2, 4})
      for (const bool recompute : {false, true}) {
        Recipe recipe = stream_recipe(StreamType::kBF16, dense, recompute);
        recipe.parallel.pp = stages;
        SCOPED_TRACE(fmt::format("{} stages, recompute {}", stages, recompute));
        const StreamNumbers got = numbers_of(recipe, stages, DType::kBF16);
        EXPECT_EQ(got.loss, want.loss);
        for (const auto& [name, gradient] : want.gradients) {
          const bool tied = !dense && name.find("embed_tokens") != std::string::npos;
          EXPECT_TRUE(tied || got.gradients.at(name) == gradient) << name;
        }
      }
  }
}

// All gradients of one step together are at most twice as far from fp64 as with an fp32 stream.
TEST(StreamType, ItsErrorIsOfTheSizeOfBf16Products) {
  const auto run = [](StreamType stream, DType compute) {
    return all_of(numbers_of(stream_recipe(stream, true, true, 2), 1, compute).gradients);
  };
  const std::vector<double> exact = run(StreamType::kF32, DType::kF64);
  const double wide = stream_error_of(run(StreamType::kF32, DType::kBF16), exact);
  const double narrow = stream_error_of(run(StreamType::kBF16, DType::kBF16), exact);
  EXPECT_NE(narrow, wide);
  EXPECT_LE(narrow, 2 * wide);
}

int64_t saved_bytes(const Recipe& recipe) {
  Allocator meta(Device::kMeta);
  TinyRank rank(recipe, {.compute = DType::kBF16, .device = Device::kMeta});
  return rank.memory().tags[size_t(Tag::kSaved)].peak_bytes;
}

// Recomputation keeps the stream before every block and after the last, and one block's inner
// stream; all of it is half as wide.
TEST(StreamType, HalvesWhatRecomputationKeeps) {
  const Recipe wide = stream_recipe(StreamType::kF32, true, true),
               narrow = stream_recipe(StreamType::kBF16, true, true);
  const int64_t tokens = wide.train.micro_batch * wide.data.sequence_length;
  const int64_t streams = wide.model.num_hidden_layers + 2;
  EXPECT_EQ(saved_bytes(wide) - saved_bytes(narrow), streams * tokens * wide.model.hidden_size * 2);
}

TEST(StreamType, NeedsBf16Products) {
  const Recipe recipe = stream_recipe(StreamType::kBF16, true, true);
  for (const DType compute : {DType::kF32, DType::kF64}) try {
      TinyRank rank(recipe, {.compute = compute});
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_NE(std::string(error.what()).find("train.stream is bf16"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("train.precision=bf16"), std::string::npos);
    }
}

}  // namespace
}  // namespace ashlar::parallel
