// Bits that change on one rank are found, and the rank is named.  That copies which are equal pass
// for equal is held by every row of the table of layouts (tests/train/parity.cpp).
#include "ashlar/parallel/copy_check.h"

#include <gmock/gmock.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/parallel/zero.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/errors.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using ashlar::testing_support::message_of;
using testing::HasSubstr;

Recipe checked_recipe(int64_t zero) {
  Recipe recipe = recipe_of(spec_with_heads(4, 2), 1, 24);
  recipe.train.global_batch = 4;
  recipe.parallel.zero = zero;
  recipe.health.weights_every = 1;
  return recipe;
}

void take_step(TinyRank& rank) {
  const Batch batch = batch_of({{24}}, rank.model.recipe().model.vocab_size);
  const std::vector<MicroBatch> batches(size_t(rank.model.micro_batches_per_step()), batch.view());
  rank.model.step(batches);
  rank.model.reduce();
  rank.model.download_results();
}

// The errors of every rank in the steps until every part was compared, where `spoil` ran after the
// first step, and weights are taken for changed after each.
std::vector<std::string> said_after(int num_ranks, int64_t zero,
                                    const std::function<void(comm::Group&, RankModel&)>& spoil) {
  std::vector<std::string> said(static_cast<size_t>(num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(checked_recipe(zero), world);
    take_step(rank);
    rank.model.weights_changed();
    spoil(world, rank.model);
    said[size_t(world.rank())] = message_of(ErrorKind::kDevice, [&] {
      for (int64_t step = 0; step < CopyCheck::kNumParts; ++step) {
        take_step(rank);
        rank.model.weights_changed();
      }
    });
  });
  return said;
}

void flip_bit(const Tensor& tensor, int64_t element) {
  tensor.data[element * size_of(tensor.dtype)] ^= std::byte{1};
}

TEST(CopyCheck, NamesTheRankThatDiffersFromMost) {
  const auto said = said_after(4, 0, [](comm::Group& world, RankModel& model) {
    if (world.rank() != 2) return;
    for (const Parameter& p : model.parameters())
      if (p.logical.name.find(".1.") != std::string::npos && p.value.numel() > 100)
        return flip_bit(p.value, p.value.numel() / 2);
    ADD_FAILURE() << "no tensor of block 1 was found";
  });
  for (const std::string& text : said)
    EXPECT_THAT(text,
                testing::StartsWith("rank 2 has other weights of block 1 than 3 other ranks"));
}

TEST(CopyCheck, NamesBothOfTwo) {
  const auto said = said_after(2, 0, [](comm::Group& world, RankModel& model) {
    if (world.rank() == 1) flip_bit(model.parameters()[0].value, 0);
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, HasSubstr("the weights of the root"));
    EXPECT_THAT(text, testing::ContainsRegex("^ranks [01] and [01] differ in "));
  }
}

// With shards the copies are those that were gathered.
TEST(CopyCheck, FindsWhatTransportOrMemoryChanged) {
  const auto said = said_after(4, 1, [](comm::Group& world, RankModel& model) {
    world.barrier("the gather is done").wait();
    if (world.rank() != 3) return;
    const Tensor root = model.local().unit_weights(0);
    // Compared next, and of the shard of rank 0.
    flip_bit(root, root.numel() * 3 / 2 / CopyCheck::kNumParts);
  });
  for (const std::string& text : said)
    EXPECT_THAT(text,
                HasSubstr("rank 3 has other weights of the root (embedding, head and vectors)"));
}

TEST(CopyCheck, NothingIsComparedOnOneRank) {
  TinyRank rank(checked_recipe(0));
  EXPECT_FALSE(rank.model.compares_copies());
}

}  // namespace
}  // namespace ashlar::parallel
