// A mesh planned by class against all its ranks one by one; the plan as text and as JSON.
#include "ashlar/plan/mesh.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/plan/json.h"
#include "ashlar/plan/print.h"
#include "tests/plan/mesh_cases.h"
#include "tests/train/plan_differences.h"
#include "tests/train/real_rank.h"

namespace ashlar::plan {
namespace {

using namespace train;
using namespace train::testing_support;

class MeshByClass : public testing::TestWithParam<MeshCase> {};

TEST_P(MeshByClass, EqualsAllRanksOneByOne) {
  const Recipe recipe = recipe_with(GetParam().overrides);
  const DType compute = DType::kF32;
  const int num_ranks = GetParam().num_ranks;
  const MeshPlan mesh = plan_mesh(recipe, compute, num_ranks, {}, 1);
  EXPECT_EQ(mesh.parallel, resolve_parallel(recipe, num_ranks));
  std::vector<int> seen(size_t(num_ranks), 0);
  KernelCosts all;
  for (const RankClass& c : mesh.classes)
    for (const int rank : c.ranks) {
      const RunPlan plan = plan_run(recipe, compute, num_ranks, 1, rank);
      EXPECT_EQ(differences(c.plan, plan.memory), "") << "rank " << rank;
      EXPECT_EQ(c.plan.step_memory, plan.step_memory) << "rank " << rank;
      EXPECT_EQ(c.plan.workspace_peak, plan.workspace_peak) << "rank " << rank;
      if (rank == c.ranks[0]) {
        EXPECT_EQ(differences(c.plan.traffic, plan.traffic), "") << "rank " << rank;
      }
      ++seen[size_t(rank)];
      add(all, plan.costs);
    }
  EXPECT_EQ(seen, std::vector<int>(size_t(num_ranks), 1));
  ASSERT_TRUE(mesh.costs.has_value());
  for (const auto& [op, cost] : all) {
    ASSERT_TRUE(mesh.costs->contains(op)) << op;
    EXPECT_EQ(mesh.costs->at(op).flop, cost.flop) << op;
    EXPECT_EQ(mesh.costs->at(op).bytes, cost.bytes) << op;
  }
  EXPECT_EQ(mesh.costs->size(), all.size());
}

// Both as every rank writes for itself and as one rank of three writes for all.
TEST_P(MeshByClass, SavesAsTrainersOfAllRanksWould) {
  const int num_ranks = GetParam().num_ranks;
  Threads threads(1);
  for (const char* gather : {"checkpoint.gather_mib=0", "checkpoint.gather_mib=4096"}) {
    Overrides overrides = GetParam().overrides;
    overrides.push_back(gather);
    const Recipe recipe = recipe_with(overrides);
    CheckpointMeter meter(recipe, num_ranks, 3, recipe.checkpoint.gather_mib > 0);
    for (int rank = 0; rank < num_ranks; ++rank)
      meter.add(DryRank(recipe, DType::kF32, num_ranks, rank, threads).trainer());
    EXPECT_EQ(plan_checkpoint(recipe, DType::kF32, num_ranks, 1, 3), meter.size()) << gather;
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, MeshByClass, testing::ValuesIn(kMeshes),
                         [](const testing::TestParamInfo<MeshCase>& info) {
                           return info.param.name;
                         });

TEST(MeshPlan, OneRankAlone) {
  const Recipe recipe = recipe_with({"parallel.zero=3", "parallel.tp=2"});
  const MeshPlan plan = plan_mesh(recipe, DType::kF32, 4, 3, 1);
  ASSERT_EQ(plan.classes.size(), 1u);
  EXPECT_EQ(plan.classes[0].ranks, std::vector<int>{3});
  EXPECT_FALSE(plan.costs.has_value());
  EXPECT_EQ(differences(plan.classes[0].plan, plan_run(recipe, DType::kF32, 4, 1, 3).memory), "");
}

TEST(MeshPlan, NamesThePlaceOfTheWorkspacePeak) {
  const auto place = [](const Overrides& overrides) {
    return plan_run(recipe_with(overrides), DType::kF32, 1, 1).workspace_peak;
  };
  EXPECT_EQ(place({"model.vocab_size=100000"}), "loss");
  EXPECT_EQ(place({"optim.matrices=adamw", "data.sequence_length=240"}), "backward of block 1");
  EXPECT_EQ(
      place({"data.sequence_length=8", "model.vocab_size=8", "model.moe_intermediate_size=480"}),
      "optimizer");
}

TEST(MeshPlan, RefusesRanksThatAreNotThere) {
  const Recipe recipe = recipe_with({"parallel.tp=2"});
  for (const auto& [num_ranks, rank] : {std::pair{3, 0}, {4, 4}, {4, -1}, {0, 0}}) {
    try {
      plan_mesh(recipe, DType::kF32, num_ranks, rank, 1);
      ADD_FAILURE() << rank << " of " << num_ranks;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    }
  }
}

TEST(MeshPlan, JsonHoldsThePlan) {
  const Recipe recipe = recipe_with({"parallel.zero=2", "parallel.tp=2"});
  const MeshPlan plan = plan_mesh(recipe, DType::kF32, 8, {}, 1);
  const Json json = parse_json(to_json(plan, recipe, DType::kF32), "plan", ErrorKind::kConfig);
  EXPECT_EQ(json.at("parallel").at("dp"), 4);
  EXPECT_EQ(json.at("model").at("parameters"), json.at("model").at("parameters_formula"));
  EXPECT_EQ(json.at("all_ranks").at("flop"), total(*plan.costs).flop);
  ASSERT_EQ(json.at("classes").size(), plan.classes.size());
  for (size_t i = 0; i < plan.classes.size(); ++i) {
    const Json& c = json.at("classes")[i];
    const RunPlan& first = plan.classes[i].plan;
    EXPECT_EQ(c.at("ranks"), Json(plan.classes[i].ranks));
    EXPECT_EQ(c.at("memory_bytes").at("total"), first.memory.total.peak_bytes);
    int64_t sent = 0, planned = 0;
    for (const Json& row : c.at("traffic")) sent += row.at("sent_bytes").get<int64_t>();
    for (const GroupTraffic& t : first.traffic) planned += t.row.sent_bytes;
    EXPECT_EQ(sent, planned);
    EXPECT_GT(sent, 0);
  }
}

TEST(MeshPlan, OfManyClassesTheFullestIsPrinted) {
  const Recipe recipe = recipe_with({});
  MeshPlan plan = plan_mesh(recipe, DType::kF32, 2);
  const auto num_printed = [&] {
    const std::string text = describe(plan, recipe, DType::kF32);
    size_t num = 0;
    for (size_t at = 0; (at = text.find("below, rank", at)) != text.npos; ++at) ++num;
    return num;
  };
  RankClass c = plan.classes[0];
  plan.classes.clear();
  for (int rank = 0; rank < 8; ++rank) {
    c.ranks = {rank};
    c.plan.memory.total.peak_bytes = rank == 5 ? 3'000'000 : 1'000'000 + rank;
    plan.classes.push_back(c);
  }
  EXPECT_EQ(num_printed(), 8u);
  c.ranks = {8};
  plan.classes.push_back(c);
  EXPECT_EQ(num_printed(), 1u);
  const std::string text = describe(plan, recipe, DType::kF32);
  EXPECT_NE(text.find("9 classes of ranks, whose totals are from 1,000,000 to 3,000,000 bytes"),
            text.npos);
  EXPECT_NE(text.find("class 6 of 9"), text.npos);
  EXPECT_NE(text.find("below, rank 5:"), text.npos);
}

TEST(MeshPlan, RangesOfRanks) {
  EXPECT_EQ(ranges_text({3}), "3");
  EXPECT_EQ(ranges_text({0, 1, 2, 4, 6, 7}), "0-2, 4, 6-7");
  EXPECT_EQ(ranges_text({0, 2, 4, 6, 7}), "0-6 step 2, 7");
  EXPECT_EQ(ranges_text({3, 8, 9, 14}), "3, 8-9, 14");
}

}  // namespace
}  // namespace ashlar::plan
