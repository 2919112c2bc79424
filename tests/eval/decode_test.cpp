// Decode through the caches equals the full forward pass, for any split into chunks.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/eval/generate.h"
#include "tests/parallel/tiny_rank.h"

namespace ashlar::eval {
namespace {

using namespace parallel::testing_support;

const std::vector<int32_t> kIds = {3, 7, 1, 9, 9, 2, 10};

enum class Kind { kZaya, kTopK, kGla, kGatedDelta, kGated, kNormed };

// ZAYA1's blocks; mixtures of two experts a token and a gated shared one, some with a window; or
// linear mixers with convolutions, the second kind beside attention; or attention with a gate on
// its output, zero-centred norms and partial RoPE; or residuals that are normed.
ModelKeys keys_of(Kind kind) {
  ModelKeys keys = nn::tiny_spec();
  if (kind == Kind::kZaya) return keys;
  if (kind == Kind::kGated || kind == Kind::kNormed) {
    keys.layer_types.assign(3, LayerType::kFullAttention), keys.intermediate_size = 6;
    keys.layer_types[1].sliding = true, keys.qk_norm = QkNorm::kRms;
    keys.residual = kind == Kind::kGated ? Residual::kPlain : Residual::kNormed;
    keys.attention_output_gate = keys.zero_centered_norm = kind == Kind::kGated;
    keys.full_attn = {1.3, 0.7}, keys.mlp = {0.8, 1.1};
    return keys;
  }
  if (kind != Kind::kTopK) {
    const bool delta = kind == Kind::kGatedDelta;
    keys.layer_types.assign(3, LayerType::kLinearAttention);
    if (delta) keys.layer_types[1] = LayerType::kFullAttention;
    keys.num_hidden_layers = 3, keys.intermediate_size = 6, keys.residual = Residual::kPlain;
    keys.linear.kind = delta ? LinearKind::kGatedDelta : LinearKind::kGla;
    keys.linear.num_key_heads = 2, keys.linear.num_value_heads = delta ? 4 : 2;
    keys.linear.key_head_dim = 5, keys.linear.value_head_dim = 6;
    keys.linear.conv_taps = delta ? 4 : 2;
    return keys;
  }
  const LayerType whole{AttentionSpec::kKind, MoeSpec::kKind},
      sliding{whole.mixer, MoeSpec::kKind, true};
  keys.layer_types = {whole, sliding, whole};
  keys.residual = Residual::kPlain, keys.qk_norm = QkNorm::kRms;
  keys.router = RouterKind::kLinear, keys.linear_router.num_chosen = 2;
  keys.shared_expert_intermediate_size = 7, keys.shared_expert_gate = true;
  return keys;
}

// Logits after every id, from one pass of the model in training.
std::vector<double> full_logits(DType compute, const std::vector<int32_t>& ids,
                                Kind kind = Kind::kZaya) {
  const auto num_tokens = int64_t(ids.size());
  TinyRank rank(recipe_of(keys_of(kind), 1, num_tokens), {.compute = compute, .num_threads = 2});
  rank.model.evaluate({ids, ids, std::vector<Segment>{{0, num_tokens, 0, 0}}});
  return rank.logits();
}

// The same weights in a model that only runs forward.
struct Inference {
  explicit Inference(DType compute, Kind kind = Kind::kZaya)
      : workspace(allocator, 8 << 20, Tag::kWorkspace),
        ctx{.threads = &threads, .workspace = &workspace},
        model(ctx, allocator, model_of(keys_of(kind)), compute, 64, {.training = false}) {
    for (const Piece& piece : model.pieces())
      for (int64_t i = 0; i < piece.data.numel(); ++i)
        set(piece.data, i, nn::golden_weight(piece.logical.name, i, piece.data.numel()));
    model.pack(ctx);
  }
  Allocator allocator{Device::kCpu};
  Threads threads{2};
  Arena workspace;
  const kernels::Context ctx;
  nn::Model model;
};

class Decode : public testing::TestWithParam<std::vector<int>> {};

// The cache drives forward() directly, so that fp64 logits are compared as fp64.
void expect_cached_equals_full(DType compute, const std::vector<int>& chunks, double tolerance,
                               Kind kind = Kind::kZaya) {
  const std::vector<double> full = full_logits(compute, kIds, kind);
  Inference m(compute, kind);
  const nn::Types& types = m.model.types();
  DecodeCache cache(m.allocator, m.model, 16, 7);
  OwnedTensor ids_T = make_tensor(m.allocator, DType::kI32, {7}, Tag::kInput);
  int64_t begin = 0;
  for (const int count : chunks) {
    Arena arena = arena_for(m.allocator, Tag::kSaved, [&](Arena& a) {
      nn::Saved::make(a, m.model.weights(), types, count, 1, nn::Keep::kNothing);
    });
    const nn::Saved saved =
        nn::Saved::make(arena, m.model.weights(), types, count, 1, nn::Keep::kNothing);
    const kernels::Sequence sequence({cache.next(count)});
    const Tensor ids = ids_T.tensor.slice(0, count);
    std::copy_n(kIds.begin() + begin, count, ids.as<int32_t>());
    forward(m.ctx, m.model.call(cache.exchanges(), sequence, ids), saved);
    OwnedTensor out = make_tensor(m.allocator, types.wide, {count, 11}, Tag::kWorkspace);
    nn::head_logits(m.ctx, m.model, saved.final_TH, out.tensor);
    for (int64_t i = 0; i < count * 11; ++i)
      ASSERT_NEAR(get(out.tensor, i), full[size_t(begin * 11 + i)], tolerance) << begin << " " << i;
    begin += count;
  }
}

TEST_P(Decode, EqualsFullForwardInDouble) {
  expect_cached_equals_full(DType::kF64, GetParam(), 1e-12);
}
TEST_P(Decode, EqualsFullForwardInSingle) {
  expect_cached_equals_full(DType::kF32, GetParam(), 2e-5);
}

TEST_P(Decode, OfMixturesEqualsFullForward) {
  expect_cached_equals_full(DType::kF64, GetParam(), 1e-12, Kind::kTopK);
  expect_cached_equals_full(DType::kF32, GetParam(), 2e-5, Kind::kTopK);
}

TEST_P(Decode, OfLinearMixersEqualsFullForward) {
  for (const Kind kind : {Kind::kGla, Kind::kGatedDelta}) {
    expect_cached_equals_full(DType::kF64, GetParam(), 1e-12, kind);
    expect_cached_equals_full(DType::kF32, GetParam(), 1e-4, kind);
  }
}

TEST_P(Decode, OfGatedAttentionAndNormedResidualsEqualsFullForward) {
  for (const Kind kind : {Kind::kGated, Kind::kNormed}) {
    expect_cached_equals_full(DType::kF64, GetParam(), 1e-12, kind);
    expect_cached_equals_full(DType::kF32, GetParam(), 1e-4, kind);
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, Decode,
                         testing::Values(std::vector<int>{7}, std::vector<int>{3, 2, 1, 1},
                                         std::vector<int>{1, 1, 1, 1, 1, 1, 1},
                                         std::vector<int>{2, 5}, std::vector<int>{1, 6},
                                         std::vector<int>{6, 1}));

TEST(Decoder, GreedyEqualsRepeatedFullForward) {
  Inference m(DType::kF32);
  Decoder decoder(m.ctx, m.allocator, m.model, 16, 3);
  const std::vector<int32_t> made = generate(decoder, std::span(kIds).first(2),
                                             {.max_tokens = 5, .sampling = {}}, [](int32_t) {});
  std::vector<int32_t> ids(kIds.begin(), kIds.begin() + 2);
  for (const int32_t id : made) {
    const std::vector<double> full = full_logits(DType::kF32, ids);
    const std::vector<float> last(full.end() - 11, full.end());
    EXPECT_EQ(id, argmax(last));
    ids.push_back(id);
  }
  EXPECT_EQ(made.size(), 5u);
}

// All that decoding takes of memory, for a sequence of so many tokens.
MemoryCounts decoder_memory(Kind kind, int64_t max_tokens) {
  Allocator allocator(Device::kMeta);
  Threads threads(1);
  Arena workspace(Device::kMeta);
  const kernels::Context ctx{.device = Device::kMeta, .threads = &threads, .workspace = &workspace};
  nn::Model model(ctx, allocator, model_of(keys_of(kind)), DType::kF32, max_tokens,
                  {.training = false});
  Decoder decoder(ctx, allocator, model, max_tokens, 256);
  return allocator.counts();
}

TEST(Decoder, OfLinearMixersTakesTheSameMemoryForAnyLength) {
  const MemoryCounts few = decoder_memory(Kind::kGla, 1000),
                     many = decoder_memory(Kind::kGla, 1'000'000);
  for (size_t tag = 0; tag < few.tags.size(); ++tag)
    EXPECT_EQ(few.tags[tag].peak_bytes, many.tags[tag].peak_bytes) << tag;
  EXPECT_GT(decoder_memory(Kind::kGatedDelta, 1'000'000).tags[size_t(Tag::kCache)].peak_bytes,
            many.tags[size_t(Tag::kCache)].peak_bytes * 100);
}

TEST(Decoder, WithoutMaskIsRefused) {
  Allocator allocator(Device::kMeta);
  Threads threads(1);
  Arena workspace(Device::kMeta);
  const kernels::Context ctx{.device = Device::kMeta, .threads = &threads, .workspace = &workspace};
  ModelKeys keys = keys_of(Kind::kGla);
  keys.linear.kind = LinearKind::kBasic, keys.linear.causal = false;
  nn::Model model(ctx, allocator, model_of(keys), DType::kF32, 100, {.training = false});
  try {
    Decoder decoder(ctx, allocator, model, 100, 10);
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "model.linear_causal is false: tokens read what is behind them, so this model "
                 "cannot generate; it can be trained and evaluated");
  }
}

TEST(Decoder, PastTheCacheIsAnError) {
  Inference m(DType::kF32);
  Decoder decoder(m.ctx, m.allocator, m.model, 4);
  EXPECT_THROW(decoder.feed(kIds), Error);
}

TEST(Sampler, GreedyTopKTopP) {
  const std::vector<float> logits = {0.1f, 2.0f, 1.9f, -3.0f};
  std::vector<std::pair<float, int32_t>> scratch;
  EXPECT_EQ(sample({.temperature = 0}, logits, 0, scratch), 1);
  EXPECT_EQ(sample({.temperature = 5, .top_k = 1}, logits, 3, scratch), 1);
  EXPECT_EQ(sample({.temperature = 5, .top_p = 1e-6}, logits, 3, scratch), 1);
  std::vector<int> seen(4);
  for (int64_t p = 0; p < 4000; ++p)
    ++seen[size_t(sample({.temperature = 1, .top_k = 2, .seed = 9}, logits, p, scratch))];
  EXPECT_EQ(seen[0] + seen[3], 0);
  EXPECT_NEAR(seen[1] / 4000.0, 1.0 / (1.0 + std::exp(-0.1)), 0.03);
  EXPECT_EQ(sample({.temperature = 1, .seed = 4}, logits, 17, scratch),
            sample({.temperature = 1, .seed = 4}, logits, 17, scratch));
  EXPECT_THROW(validate({.temperature = -1}), Error);
  EXPECT_THROW(validate({.top_p = 0}), Error);
  EXPECT_THROW(validate({.top_k = -2}), Error);
}

}  // namespace
}  // namespace ashlar::eval
