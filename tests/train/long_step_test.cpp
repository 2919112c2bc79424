// The plan of a step of many micro-batches, which two short steps tell, against the dry run of the
// whole step: costs of every kernel, traffic of every group, events and workspace, as integers.
#include <gtest/gtest.h>

#include "ashlar/core/clock.h"
#include "tests/train/plan_differences.h"
#include "tests/train/real_rank.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

struct LongCase {
  std::string name;
  int num_ranks;
  int64_t micro_batches;  // of a data rank
  Overrides overrides;
};

void PrintTo(const LongCase& c, std::ostream* out) {
  *out << c.name;
}

class LongStep : public testing::TestWithParam<LongCase> {};

TEST_P(LongStep, CostsWhatTheWholeDryRunCounts) {
  const auto& [name, num_ranks, micro_batches, more] = GetParam();
  Recipe recipe = recipe_with(more);
  recipe.train.micro_batch = 1;
  recipe.train.global_batch = micro_batches * resolve_parallel(recipe, num_ranks).dp;
  recipe.data.num_streams = recipe.train.global_batch;
  Threads threads(1);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const RunPlan plan = plan_run(recipe, DType::kF32, num_ranks, 1, rank);
    DryRank dry(recipe, DType::kF32, num_ranks, rank, threads);
    dry.step();
    for (const auto& [op, cost] : dry.costs()) {
      ASSERT_TRUE(plan.costs.contains(op)) << op;
      EXPECT_EQ(plan.costs.at(op).flop, cost.flop) << op << " on rank " << rank;
      EXPECT_EQ(plan.costs.at(op).bytes, cost.bytes) << op << " on rank " << rank;
    }
    EXPECT_EQ(plan.costs.size(), dry.costs().size());
    EXPECT_EQ(differences(plan.traffic, dry.traffic()), "") << "rank " << rank;
    EXPECT_EQ(plan.trace, dry.num_events());
    dry.evaluate();
    EXPECT_EQ(plan.step_memory, dry.step_memory());
    EXPECT_EQ(plan.workspace_peak, dry.workspace_peak());
    DryRank whole(recipe, DType::kF32, num_ranks, rank, threads, plan.step_memory);
    EXPECT_EQ(differences(plan, whole.memory()), "") << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LongStep,
    testing::Values(
        LongCase{"short", 1, 11, {}}, LongCase{"one_rank", 1, 12, {}},
        LongCase{"recompute", 1, 61, {"train.recompute=true"}},
        LongCase{"micro_batch_scope", 2, 41, {"moe.balance.scope=micro_batch"}},
        LongCase{"dp2_zero0", 2, 40, {"parallel.zero=0"}},
        LongCase{
            "dp2_zero2_bucketed",
            2,
            41,
            {"parallel.zero=2", "parallel.zero_layout=bucketed", "parallel.bucket_bytes=20000"}},
        LongCase{"dp2_tp2_zero3", 4, 41, {"parallel.tp=2", "parallel.zero=3"}},
        LongCase{"cp2_ring", 2, 41, {"parallel.cp=2", "parallel.cp_exchange=ring"}},
        LongCase{"tsp2", 2, 41, {"parallel.tsp=2"}}, LongCase{"dp2_ep2", 2, 41, {"parallel.ep=2"}},
        LongCase{"pp2_gpipe", 2, 41, {"parallel.pp=2", "parallel.schedule=gpipe"}},
        LongCase{"pp2_1f1b", 2, 40, {"parallel.pp=2"}},
        LongCase{"pp2_1f1b_odd_recompute", 2, 41, {"parallel.pp=2", "train.recompute=true"}},
        LongCase{"pp2_zb", 2, 41, {"parallel.pp=2", "parallel.schedule=zb"}},
        LongCase{"pp4_zb_zero3",
                 8,
                 61,
                 {"parallel.pp=4", "parallel.schedule=zb", "parallel.zero=3",
                  "model.num_hidden_layers=4"}},
        LongCase{"pp2_interleaved",
                 2,
                 62,
                 {"parallel.pp=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
                  "model.num_hidden_layers=4"}}),
    [](const auto& info) { return info.param.name; });

// It took two minutes to say what a step of 100,000 micro-batches takes, and longer of one
// micro-batch with 100,000 sequences.
TEST(LongSteps, ArePlannedInAMoment) {
  for (const int64_t micro_batch : {1, 100'000}) {
    Recipe recipe = recipe_with({});
    recipe.train.micro_batch = micro_batch;
    recipe.train.global_batch = 100'000;
    recipe.data.num_streams = 100'000;
    const auto start = Clock::now();
    const RunPlan plan = plan_run(recipe, DType::kF32, 1, 1);
    EXPECT_GT(plan.memory.total.peak_bytes, 0);
    EXPECT_LT(seconds_since(start), 20.0) << micro_batch;  // on a loaded machine
  }
}

}  // namespace
}  // namespace ashlar::train
