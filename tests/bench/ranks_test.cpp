// The bench's rows are the communicator's, and they meet the closed floors.
#include "ashlar/bench/ranks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "ashlar/bench/traffic_floor.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/trainer.h"
#include "tests/support/errors.h"

namespace ashlar::bench {
namespace {

const std::string kTiny = ASHLAR_FIXTURES "/recipes/tiny.toml";

Recipe tiny_on_ranks(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"train.precision=fp32", "train.threads=1",
                                       "train.micro_batch=1", "optim.matrices=adamw"});
  return load_recipe(kTiny, overrides);
}

RanksReport measure(const Recipe& recipe, int num_ranks, const RanksOptions& options) {
  RanksReport report;
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
    const RanksReport mine = measure_ranks(recipe, {ranks, allocator, 1}, options);
    if (ranks.rank() == 0) report = mine;
  });
  return report;
}

// Rows of experts follow from what the tokens choose, which is not the same in every step.
bool is_fixed(const std::string& group) {
  return group != "ep";
}

// Payload that a rank sends in one step, mean over the ranks, as the counters of a trainer say.
double counted_bytes(const Recipe& recipe, int num_ranks) {
  std::vector<int64_t> sent(static_cast<size_t>(num_ranks));
  Allocator allocator(Device::kCpu);
  comm::run_ranks(num_ranks, {}, allocator, [&](comm::Group& ranks) {
    Threads threads(1);
    train::Trainer trainer(
        recipe, DType::kF32, allocator, threads, ranks,
        train::plan_run(recipe, DType::kF32, num_ranks, 1, ranks.rank()).step_memory);
    trainer.initialize();
    const std::vector<int32_t> ids(size_t(recipe.data.sequence_length), 1);
    const kernels::Sequence sequence = kernels::Sequence::rows(1, recipe.data.sequence_length);
    const auto total = [&] {
      ranks.barrier("test").wait();
      int64_t bytes = 0;
      for (const comm::Group* group : trainer.model().all_groups())
        for (const comm::TrafficRow& row : group->traffic())
          if (is_fixed(group->name())) bytes += row.sent_bytes;
      return bytes;
    };
    const auto step = [&](int64_t number) {
      const train::MicroBatch batch{ids, ids, sequence.segments()};
      trainer.run(number, std::vector(size_t(trainer.model().micro_batches_per_step()), batch));
      trainer.reduce();
      trainer.apply(trainer.measure());
    };
    step(0);
    const int64_t before = total();
    step(1);
    sent[size_t(ranks.rank())] = total() - before;
  });
  return double(std::accumulate(sent.begin(), sent.end(), int64_t{0})) / num_ranks;
}

struct Case {
  std::string name;
  int num_ranks;
  std::vector<std::string> overrides;
};

class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, RowsAreTheCommunicatorsAndMeetTheFloors) {
  const Recipe recipe = tiny_on_ranks(GetParam().overrides);
  const RanksReport report =
      measure(recipe, GetParam().num_ranks, {.steps = 2, .engine = "thread"});
  double sent = 0, fixed = 0;
  size_t num_floors = 0;
  for (const TrafficLine& line : report.traffic) {
    sent += line.sent_bytes;
    if (is_fixed(line.group)) fixed += line.sent_bytes;
    if (line.floor_bytes == 0) continue;
    ++num_floors;
    // Padding is all that comes on top; tiny tensors have much of it.
    EXPECT_GE(line.sent_bytes, line.floor_bytes * (1 - 1e-12)) << line.label;
    const bool padded = line.label == "gradients" || line.label == "weights";
    EXPECT_LE(line.sent_bytes, line.floor_bytes * (padded ? 1.05 : 1 + 1e-12)) << line.label;
    EXPECT_GT(line.ran_s, 0) << line.label;
  }
  EXPECT_EQ(num_floors, traffic_floors(recipe, report.parallel, DType::kF32).size());
  EXPECT_NEAR(fixed, counted_bytes(recipe, GetParam().num_ranks), 1e-6);
  EXPECT_NEAR(report.sent_bytes, sent, 1e-6);
  EXPECT_EQ(report.step.count, 2u);
}

INSTANTIATE_TEST_SUITE_P(
    Bench, Layouts,
    testing::Values(
        Case{"zero0", 2, {"parallel.zero=0"}}, Case{"zero1", 2, {}},
        Case{"zero1_bucketed", 4, {"parallel.zero_layout=bucketed"}},
        Case{"zero2", 2, {"parallel.zero=2"}},
        Case{"zero3", 2, {"parallel.zero=3", "train.global_batch=6", "model.num_hidden_layers=3"}},
        Case{"cp_gather", 2, {"parallel.cp=2", "train.recompute=true"}},
        Case{"states_gathered",
             2,
             {"parallel.cp=2", "train.recompute=true", "model.layer_types=linear+moe",
              "model.linear_recurrence=gla", "model.linear_conv_kernel_dim=3"}},
        Case{"states_of_hybrids",
             4,
             {"parallel.cp=4", "model.layer_types=[\"linear+moe\", \"attention+moe\"]",
              "model.linear_recurrence=gated_delta", "parallel.cp_layout=contiguous"}},
        Case{"states_in_a_chain",
             3,
             {"parallel.cp=3", "model.layer_types=linear+moe", "parallel.state_exchange=chain",
              "data.sequence_length=48"}},
        Case{"states_in_a_contiguous_scan",
             2,
             {"parallel.cp=2", "model.layer_types=linear+moe", "parallel.state_exchange=scan",
              "parallel.cp_layout=contiguous"}},
        Case{"cp_ring_contiguous",
             4,
             {"parallel.cp=4", "parallel.cp_exchange=ring", "parallel.cp_layout=contiguous"}},
        Case{"cp_heads", 2, {"parallel.cp=2", "parallel.cp_exchange=all_to_all"}},
        Case{"cp_heads_shared_recompute",
             4,
             {"parallel.cp=4", "parallel.cp_exchange=all_to_all", "train.recompute=true"}},
        Case{"tp", 2, {"parallel.tp=2"}},
        Case{"moe_tp_cp",
             4,
             {"parallel.tp=2", "parallel.cp=2", "train.recompute=true",
              "model.layer_types=attention+moe", "model.router=linear",
              "model.num_experts_per_tok=2", "model.shared_expert_intermediate_size=24",
              "model.shared_expert_gate=true", "moe.router_aux_loss_coef=0.01"}},
        Case{"tp_adapters_of_experts",
             2,
             {"parallel.tp=2", "init.model=none", "lora.rank=3", "lora.targets=experts",
              "model.layer_types=attention+moe", "model.router=linear",
              "model.num_experts_per_tok=2"}},
        Case{"pp", 2, {"parallel.pp=2"}},
        Case{"pp_llama",
             4,
             {"parallel.pp=2", "parallel.schedule=zb", "model.layer_types=full_attention",
              "model.intermediate_size=40"}},
        Case{"ep", 2, {"parallel.ep=2"}}, Case{"ep_zero0", 4, {"parallel.ep=2", "parallel.zero=0"}},
        Case{"ep_zero3", 4, {"parallel.ep=2", "parallel.zero=3", "model.num_hidden_layers=3"}},
        Case{"tp_sequence", 2, {"parallel.tp=2", "parallel.sequence_parallel=true"}}),
    [](const auto& info) { return info.param.name; });

TEST(Ranks, TheStudyTimesAllThreeKindsOfSteps) {
  const Recipe recipe = tiny_on_ranks({});
  const RanksReport report =
      measure(recipe, 2, {.steps = 2, .overlap_study = true, .engine = "thread"});
  ASSERT_TRUE(report.study);
  EXPECT_EQ(report.step.count, 6u);
  EXPECT_EQ(report.study->waiting.count, 6u);
  EXPECT_EQ(report.study->muted.count, 6u);
  EXPECT_GT(report.study->waiting_s, 0);
  // Traffic that the muted steps left out is not counted as traffic of the others.
  EXPECT_NEAR(report.sent_bytes, measure(recipe, 2, {.steps = 2, .engine = "thread"}).sent_bytes,
              1e-6);
  const auto json = nlohmann::json::parse(to_json_line(report, recipe));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["overlap_study"]["hidden_share"], report.study->hidden_share);
}

// Sums of tensor parallelism stand behind slow gradients on one lane, and not on their own.
TEST(Ranks, ADelayOfBulkReachesSumsOnOneLaneOnly) {
  const Recipe recipe = tiny_on_ranks({"parallel.tp=2"});
  const auto waited_for_sums = [&](bool one_lane) {
    const RanksReport report = measure(
        recipe, 4, {.steps = 2, .delay_bulk_ms = 150, .one_lane = one_lane, .engine = "thread"});
    double seconds = 0;
    for (const TrafficLine& line : report.traffic)
      if (line.group == "tp") seconds += line.waited_s;
    return seconds;
  };
  const double behind = waited_for_sums(true);
  EXPECT_GT(behind, 0.15);
  EXPECT_LT(waited_for_sums(false), behind);
}

TEST(Ranks, AStudyNeedsTwoRanks) {
  const std::string message = testing_support::message_of(ErrorKind::kConfig, [] {
    measure(tiny_on_ranks({}), 1, {.steps = 1, .overlap_study = true, .engine = "self"});
  });
  EXPECT_NE(message.find("expected 2 ranks or more"), std::string::npos) << message;
}

TEST(Ranks, RefusesRanksThatCannotShareTheBatch) {
  testing_support::message_of(
      ErrorKind::kConfig, [] { measure(tiny_on_ranks({}), 3, {.steps = 1, .engine = "thread"}); });
}

}  // namespace
}  // namespace ashlar::bench
