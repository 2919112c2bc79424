// A gradient with a wrong bit is found, and the rank that made it is named; honest ranks agree on
// every layout, and compute what they compute without a replay.
#include "ashlar/parallel/replay.h"

#include <gmock/gmock.h>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/kernels/ops.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/errors.h"

namespace ashlar::parallel {
namespace {

using namespace testing_support;
using ashlar::testing_support::message_of;
using testing::HasSubstr;
using ReplayLayout = std::function<void(Recipe&)>;

Recipe replayed_recipe(int64_t every, const ReplayLayout& layout = {}) {
  Recipe recipe = recipe_of(spec_with_heads(4, 2), 1, 24);
  recipe.model.num_experts = 4;
  recipe.train.global_batch = 8;
  recipe.health.replay_every = every;
  if (layout) layout(recipe);
  return recipe;
}

// Micro-batches of this dp rank: no two of the step are alike, nor are their documents.
void take_replayed_step(TinyRank& rank) {
  const int64_t vocab_size = rank.model.recipe().model.vocab_size;
  const int64_t dp = rank.model.groups().coordinate(Axis::kDp);
  std::vector<Batch> batches;
  std::vector<MicroBatch> views;
  for (int64_t i = 0; i < rank.model.micro_batches_per_step(); ++i) {
    batches.push_back(dp % 2 == 0 ? batch_of({{24}}, vocab_size)
                                  : batch_of({{6 + dp, 6, 12 - dp}}, vocab_size));
    for (int32_t& id : batches.back().ids) id = int32_t((id + 5 * dp + i) % vocab_size);
  }
  for (const Batch& batch : batches) views.push_back(batch.view());
  rank.model.step(views);
  rank.model.reduce();
  rank.model.download_results();
}

// The products for gradients on the rank of this thread, one of which, or all, have a wrong bit.
thread_local int64_t num_products = 0, wrong_product = -1;
thread_local bool all_wrong = false;
void product_with_a_flip(const kernels::Context& ctx, DType compute, const kernels::Matrix& dy,
                         const kernels::Matrix& x, const Tensor& dw_NK, bool accumulate) {
  kernels::cpu::kOps.linear_backward_weight(ctx, compute, dy, x, dw_NK, accumulate);
  if (all_wrong || num_products++ == wrong_product) dw_NK.data[0] ^= std::byte{1};
}

const kernels::Ops& flipping_ops() {
  static const kernels::Ops ops = [] {
    kernels::Ops table = kernels::cpu::kOps;
    table.linear_backward_weight = product_with_a_flip;
    return table;
  }();
  return ops;
}

enum class WrongWork : uint8_t { kOwnWork, kRepetition, kAlways };

// The error of every rank in the second step, where one rank is wrong.
std::vector<std::string> said_where_wrong(int num_ranks, int wrong_rank, WrongWork wrong,
                                          int64_t zero) {
  std::vector<std::string> said(static_cast<size_t>(num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    num_products = 0, wrong_product = -1, all_wrong = false;
    TinyRank rank(replayed_recipe(1, [&](Recipe& recipe) { recipe.parallel.zero = zero; }), world,
                  {.ops = &flipping_ops()});
    take_replayed_step(rank);
    const int64_t of_pass = num_products / (1 + rank.model.micro_batches_per_step());
    ASSERT_GT(of_pass, 3);
    if (world.rank() == wrong_rank) {
      all_wrong = wrong == WrongWork::kAlways;
      wrong_product = num_products + 3 + (wrong == WrongWork::kOwnWork ? of_pass : 0);
    }
    said[size_t(world.rank())] = message_of(ErrorKind::kDevice, [&] { take_replayed_step(rank); });
  });
  return said;
}

TEST(Replay, NamesTheRankThatTwoContradict) {
  for (const WrongWork wrong : {WrongWork::kOwnWork, WrongWork::kRepetition, WrongWork::kAlways})
    for (const int64_t zero : {0, 2})
      for (const std::string& text : said_where_wrong(4, 2, wrong, zero)) {
        EXPECT_THAT(text, testing::StartsWith("rank 2 computed wrong gradients, of model.layers."));
        EXPECT_THAT(text, HasSubstr("on two other ranks"));
      }
}

TEST(Replay, NamesTheRankOfTwoThatContradictsItself) {
  for (const WrongWork wrong : {WrongWork::kOwnWork, WrongWork::kRepetition})
    for (const std::string& text : said_where_wrong(2, 1, wrong, 1))
      EXPECT_THAT(text, testing::StartsWith("rank 1 computed wrong gradients, of model.layers."));
}

TEST(Replay, NamesBothOfTwoThatStayAsTheyAre) {
  for (const std::string& text : said_where_wrong(2, 1, WrongWork::kAlways, 1))
    EXPECT_THAT(text, HasSubstr("ranks 0, 1 compute different gradients from the same inputs"));
}

// Gradients of every rank after two steps.
std::vector<std::vector<Element>> gradients_with_replay(int num_ranks, int64_t every,
                                                        const ReplayLayout& layout, DType compute) {
  std::vector<std::vector<Element>> gradients(static_cast<size_t>(num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& world) {
    TinyRank rank(replayed_recipe(every, layout), world, {.compute = compute});
    EXPECT_EQ(rank.model.replays(), every > 0);
    take_replayed_step(rank);
    take_replayed_step(rank);
    gradients[size_t(world.rank())] = elements_of_gradients(rank.model);
  });
  return gradients;
}

TEST(Replay, HonestRanksAgreeOnEveryLayoutAndKeepTheirBits) {
  const auto mesh = [](int64_t zero, int64_t ParallelSpec::*axis, int64_t size) -> ReplayLayout {
    return [=](Recipe& recipe) {
      recipe.parallel.zero = zero;
      recipe.parallel.*axis = size;
    };
  };
  using P = ParallelSpec;
  const std::vector<std::pair<int, ReplayLayout>> layouts = {
      {2, mesh(0, &P::cp, 1)},
      {4, mesh(1, &P::cp, 1)},
      {2, mesh(2, &P::cp, 1)},
      {2, mesh(3, &P::cp, 1)},
      {4, mesh(1, &P::cp, 2)},
      {4, mesh(3, &P::tp, 2)},
      {4, mesh(1, &P::tsp, 2)},
      {4, mesh(1, &P::ep, 2)},
      {2, [](Recipe& recipe) { recipe.train.recompute = true; }}};
  for (const auto& [num_ranks, layout] : layouts)
    for (const DType compute : {DType::kF64, DType::kF32}) {
      const auto with = gradients_with_replay(num_ranks, 1, layout, compute);
      const auto without = gradients_with_replay(num_ranks, 0, layout, compute);
      for (size_t rank = 0; rank < with.size(); ++rank) {
        ASSERT_EQ(with[rank].size(), without[rank].size());
        for (size_t i = 0; i < with[rank].size(); ++i)
          ASSERT_EQ(with[rank][i].value, without[rank][i].value) << with[rank][i].name;
      }
    }
}

TEST(Replay, ARankAloneRepeatsNothing) {
  TinyRank rank(replayed_recipe(1));
  EXPECT_FALSE(rank.model.replays());
}

}  // namespace
}  // namespace ashlar::parallel
