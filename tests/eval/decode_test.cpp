// Decode through the caches equals the full forward pass, for any split into chunks.
#include <gtest/gtest.h>

#include <cmath>

#include "ashlar/eval/generate.h"
#include "tests/nn/golden.h"

namespace ashlar::eval {
namespace {

using nn::Harness;

const std::vector<int32_t> kIds = {3, 7, 1, 9, 9, 2, 10};

std::vector<double> full_logits(DType compute, const ModelSpec& spec) {
  Harness h(spec, compute, 7);
  h.fill_golden();
  h.tokens(kIds, kIds);
  h.run_forward();
  OwnedTensor out = make_tensor(h.allocator, h.model.types().stream, {7, 11}, Tag::kWorkspace);
  nn::head_logits(h.ctx, h.model, h.saved.final_TH, out.tensor);
  std::vector<double> all;
  for (int64_t i = 0; i < 77; ++i) all.push_back(Harness::get(out.tensor, i));
  return all;
}

class Decode : public testing::TestWithParam<std::vector<int>> {};

// The cache drives forward() directly, so that fp64 logits are compared as fp64.
void expect_cached_equals_full(DType compute, const std::vector<int>& chunks, double tolerance) {
  const ModelSpec spec = nn::tiny_spec();
  const std::vector<double> full = full_logits(compute, spec);
  Harness h(spec, compute, 7);
  h.fill_golden();
  DecodeCache cache(h.allocator, spec, h.model.types(), 16, 7);
  int64_t begin = 0;
  for (const int count : chunks) {
    Arena arena = nn::arena_for(h.allocator, Tag::kSaved, [&](Arena& a) {
      nn::Saved::make(a, spec, h.model.types(), count, 1, nn::Keep::kNothing);
    });
    const nn::Saved saved =
        nn::Saved::make(arena, spec, h.model.types(), count, 1, nn::Keep::kNothing);
    h.sequence = kernels::Sequence({cache.next(count)});
    const Tensor ids = h.ids.tensor.slice(0, count);
    std::copy_n(kIds.begin() + begin, count, ids.as<int32_t>());
    forward(h.ctx, h.model.call(cache, h.sequence, ids), saved);
    OwnedTensor out =
        make_tensor(h.allocator, h.model.types().stream, {count, 11}, Tag::kWorkspace);
    nn::head_logits(h.ctx, h.model, saved.final_TH, out.tensor);
    for (int64_t i = 0; i < count * 11; ++i)
      ASSERT_NEAR(Harness::get(out.tensor, i), full[size_t(begin * 11 + i)], tolerance)
          << begin << " " << i;
    begin += count;
  }
}

TEST_P(Decode, EqualsFullForwardInDouble) {
  expect_cached_equals_full(DType::kF64, GetParam(), 1e-12);
}
TEST_P(Decode, EqualsFullForwardInSingle) {
  expect_cached_equals_full(DType::kF32, GetParam(), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Chunks, Decode,
                         testing::Values(std::vector<int>{7}, std::vector<int>{3, 2, 1, 1},
                                         std::vector<int>{1, 1, 1, 1, 1, 1, 1},
                                         std::vector<int>{2, 5}, std::vector<int>{1, 6},
                                         std::vector<int>{6, 1}));

TEST(Decoder, GreedyEqualsRepeatedFullForward) {
  const ModelSpec spec = nn::tiny_spec();
  Harness h(spec, DType::kF32, 7);
  h.fill_golden();
  Decoder decoder(h.ctx, h.allocator, h.model, 16, 3);
  const std::vector<int32_t> made = generate(decoder, std::span(kIds).first(2),
                                             {.max_tokens = 5, .sampling = {}}, [](int32_t) {});
  std::vector<int32_t> ids(kIds.begin(), kIds.begin() + 2);
  for (const int32_t id : made) {
    Harness full(spec, DType::kF32, int64_t(ids.size()));
    full.fill_golden();
    full.tokens(ids, ids);
    full.run_forward();
    OwnedTensor out =
        make_tensor(full.allocator, DType::kF32, {int64_t(ids.size()), 11}, Tag::kWorkspace);
    nn::head_logits(full.ctx, full.model, full.saved.final_TH, out.tensor);
    const auto last = out.tensor.span<float>().last(11);
    EXPECT_EQ(id, argmax(last));
    ids.push_back(id);
  }
  EXPECT_EQ(made.size(), 5u);
}

TEST(Decoder, PastTheCacheIsAnError) {
  Harness h(nn::tiny_spec(), DType::kF32, 7);
  h.fill_golden();
  Decoder decoder(h.ctx, h.allocator, h.model, 4);
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
