// Ranks that share heads and sequences: what is held by numbers of one rank stands in
// tests/train/parity_cases.cpp; here what holds to the bit, and how much stands in memory.
#include "ashlar/parallel/tsp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ashlar/comm/recording/recording.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/core/rounding.h"
#include "ashlar/parallel/cp_split.h"
#include "ashlar/parallel/zero.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;

Recipe dense_recipe(int64_t tsp, CpLayout layout) {
  ModelKeys keys = spec_with_heads(8, 4);
  keys.layer_types = {LayerType::kFullAttention};
  keys.intermediate_size = 24;
  Recipe recipe = recipe_of(keys, 2, 32);
  recipe.parallel.tsp = tsp;
  recipe.parallel.cp_layout = layout;
  return recipe;
}

// Logits of all tokens of a batch, in its order.
std::vector<double> logits_of(const Recipe& recipe, const Batch& batch, DType compute) {
  const int num_ranks = int(recipe.parallel.tsp);
  const CpSplit split{recipe.parallel.cp_layout, num_ranks, recipe.train.micro_batch,
                      recipe.data.sequence_length};
  const int64_t V = recipe.model.vocab_size;
  std::vector<double> whole(batch.ids.size() * size_t(V));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(recipe, world, {.compute = compute});
    rank.model.evaluate(batch.view());
    const std::vector<double> logits = rank.logits();
    for (int64_t row = 0; row < split.local_tokens(); ++row)
      std::copy_n(logits.begin() + row * V, V,
                  whole.begin() + whole_row(split, world.rank(), row) * V);
  });
  return whole;
}

// Another token changes nothing before it, not a bit, wherever it stands.
TEST(Tsp, NoTokenSeesALaterOne) {
  for (const DType compute : {DType::kF64, DType::kBF16})
    for (const int64_t tsp : {2, 4, 8})
      for (const CpLayout layout : {CpLayout::kZigzag, CpLayout::kContiguous}) {
        const Recipe recipe = dense_recipe(tsp, layout);
        const int64_t V = recipe.model.vocab_size, length = recipe.data.sequence_length;
        const Batch batch = batch_of({{length}, {length}}, V);
        const std::vector<double> before = logits_of(recipe, batch, compute);
        for (const int64_t token : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{21}, length - 1}) {
          Batch other = batch;
          other.ids[size_t(token)] = int32_t((other.ids[size_t(token)] + 1) % V);
          const std::vector<double> after = logits_of(recipe, other, compute);
          const auto same = [&](int64_t begin, int64_t end) {
            return std::equal(before.begin() + begin * V, before.begin() + end * V,
                              after.begin() + begin * V);
          };
          EXPECT_TRUE(same(0, token)) << "tsp " << tsp << ", token " << token;
          EXPECT_FALSE(same(token, token + 1));
          EXPECT_TRUE(same(length, 2 * length));  // the other row
        }
      }
}

// At most three shares of attention of other ranks are here at a time, no more than there are
// turns, or two of an MLP.  Pairs of 8 ranks hold the same of 4 key heads; two buckets halve what
// travels.
TEST(Tsp, RoomForSharesIsTheFormula) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
    for (const auto& [tsp, buckets] : {std::array{2, 1}, {4, 1}, {8, 1}, {2, 2}})
      for (const int64_t width : {24, 400}) {
        Recipe recipe = dense_recipe(tsp, CpLayout::kZigzag);
        recipe.model.intermediate_size = width;
        recipe.parallel.dp = 1;
        recipe.parallel.tsp_head_buckets = buckets;
        const ModelSpec whole = model_of(recipe.model);
        Allocator meta(Device::kMeta), shares(Device::kMeta);
        comm::RecordingWorld world(1, int(tsp), {}, meta);
        const Groups groups(world.group(), recipe.parallel, whole);
        const kernels::Context ctx{.device = Device::kMeta};
        nn::Model model(ctx, meta, whole, compute, 32,
                        {.share = share_of(recipe.parallel, whole, 1)});
        const ShardMemory memory = fold_branches(ctx, shares, model, groups);
        const int64_t H = recipe.model.hidden_size, D = recipe.model.head_dim;
        const int64_t turns = std::min(tsp, 4) * buckets, slots = std::min<int64_t>(3, turns);
        const int64_t N = 8 / turns, K = 4 / turns, F = width / tsp;
        const int64_t s = size_of(model.types().wide), a = size_of(model.types().activation);
        const auto room = [&](int64_t first, int64_t second, int64_t bytes) {
          return round_up((round_up(first, Arena::kAlign / s) + second) * bytes, Arena::kAlign);
        };
        const auto packed = [&](int64_t n, int64_t k) {
          const auto layout = operand_layout(ctx, 1, n, k, compute, true);
          return round_up(layout.forward_numel * size_of(layout.dtype), Arena::kAlign) +
                 round_up(layout.backward_numel * size_of(layout.dtype), Arena::kAlign);
        };
        const int64_t qkv = (N + 2 * K) * D, o = N * D;
        const auto attention = [&](int64_t bytes) { return slots * room(qkv * H, o * H, bytes); };
        const auto mlp = [&](int64_t bytes) { return 2 * room(2 * F * H, F * H, bytes); };
        const int64_t weights = std::max(attention(a) + slots * (packed(qkv, H) + packed(H, o)),
                                         mlp(a) + packed(2 * F, H) + packed(H, F));
        const MemoryCounts counts = shares.counts();
        EXPECT_EQ(counts.tags[size_t(Tag::kWeights)].peak_bytes, weights);
        EXPECT_EQ(counts.tags[size_t(Tag::kGradients)].peak_bytes, std::max(attention(s), mlp(s)));
      }
}

// Gradients of a step and logits of all ranks.
struct Numbers {
  Whole gradients;
  std::vector<double> logits;
};

Numbers numbers_of(const Recipe& recipe, const Batch& batch, DType compute) {
  const int num_ranks = int(recipe.parallel.tsp);
  std::vector<std::vector<Element>> gradients{size_t(num_ranks)};
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(recipe, world, {.compute = compute});
    rank.step(batch);
    gradients[size_t(world.rank())] = elements_of_gradients(rank.model);
  });
  return {put_together(gradients), logits_of(recipe, batch, compute)};
}

// Elements are within 1e-5 of themselves and of the largest.
void expect_close(const std::string& what, const std::vector<double>& got,
                  const std::vector<double>& want) {
  double scale = 0.0;
  for (const double v : want) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(got[i] - want[i]), 1e-5 * (std::abs(want[i]) + scale)) << what << " " << i;
}

// Relative, in the Frobenius norm.
double tsp_error_of(const std::vector<double>& got, const std::vector<double>& want) {
  double gap = 0.0, size = 0.0;
  for (size_t i = 0; i < want.size(); ++i)
    gap += std::pow(got[i] - want[i], 2), size += std::pow(want[i], 2);
  return size > 0 ? std::sqrt(gap / size) : gap;
}

void expect_bars(const Recipe& recipe) {
  const Batch batch = batch_of({{32}, {11, 21}}, recipe.model.vocab_size);
  Recipe alone = recipe;
  alone.parallel = {.zero = 0};
  const auto one = [&](DType compute) { return numbers_of(alone, batch, compute); };
  const auto all = [&](DType compute) { return numbers_of(recipe, batch, compute); };
  const Numbers fp32 = all(DType::kF32), one_fp32 = one(DType::kF32);
  expect_close("logits", fp32.logits, one_fp32.logits);
  for (const auto& [name, want] : one_fp32.gradients)
    expect_close(name, fp32.gradients.at(name), want);
  const Numbers exact = one(DType::kF64), bf16 = all(DType::kBF16), one_bf16 = one(DType::kBF16);
  const auto expect_bar = [](const std::string& what, const std::vector<double>& got,
                             const std::vector<double>& one, const std::vector<double>& exact) {
    EXPECT_LE(tsp_error_of(got, one), 1e-2) << what;
    EXPECT_LE(tsp_error_of(got, exact), 2 * tsp_error_of(one, exact)) << what;
  };
  expect_bar("logits", bf16.logits, one_bf16.logits, exact.logits);
  for (const auto& [name, want] : exact.gradients)
    expect_bar(name, bf16.gradients.at(name), one_bf16.gradients.at(name), want);
}

// fp32 element by element; bf16 in the norm, where sums of rounded numbers differ, and as close to
// fp64 as one rank is.
TEST(Tsp, ErrorsInFp32AndBf16AreThoseOfOneRank) {
  for (const int64_t tsp : {2, 4})
    for (const int64_t buckets : {1, 2})
      for (const int64_t num_keys : {2, 4, 8}) {
        Recipe recipe = dense_recipe(tsp, CpLayout::kZigzag);
        recipe.model.num_key_value_heads = num_keys;
        recipe.parallel.tsp_head_buckets = buckets;
        if (std::max<int64_t>(1, num_keys / tsp) % buckets != 0) continue;
        SCOPED_TRACE(fmt::format("tsp {}, {} keys, {} buckets", tsp, num_keys, buckets));
        expect_bars(recipe);
      }
}

// Parts of turns: each once, in the order that hides what they post.
TEST(Tsp, TurnsAreSkewed) {
  std::vector<std::pair<int, int>> forward, backward;
  skew(3, 2, false, [&](int turn, int part) { forward.push_back({turn, part}); });
  skew(3, 3, true, [&](int turn, int part) { backward.push_back({turn, part}); });
  using Parts = std::vector<std::pair<int, int>>;
  EXPECT_EQ(forward, (Parts{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {2, 1}}));
  EXPECT_EQ(backward,
            (Parts{{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1}, {2, 0}, {1, 2}, {2, 1}, {2, 2}}));
}

}  // namespace
}  // namespace ashlar::parallel
