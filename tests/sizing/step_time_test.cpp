// The analytic time of a step: its parts, what it must follow, and how fast it is.
#include "ashlar/sizing/step_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "ashlar/sizing/model.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::sizing {
namespace {

machine::Profile dgx() {
  return machine::parse_profile(machine::shipped_text("a100-dgx"), "a100-dgx");
}

StepShape shape_of(const std::string& recipe, const std::vector<std::string>& keys, int64_t ranks) {
  const Recipe read =
      load_recipe(std::string(ASHLAR_FIXTURES) + "/../../recipes/" + recipe + ".toml", keys);
  return step_shape(read, resolve_parallel(read, ranks), true);
}

StepTime time_of(const std::string& recipe, const std::vector<std::string>& keys, int64_t ranks) {
  return step_time(shape_of(recipe, keys, ranks), MachineRates(dgx(), {}, ranks, true));
}

TEST(StepTime, PartsAddUp) {
  for (const std::vector<std::string>& keys :
       std::vector<std::vector<std::string>>{{"parallel.zero=0"},
                                             {"parallel.zero=3", "parallel.cp=2"},
                                             {"parallel.pp=4", "parallel.tp=2"},
                                             {"parallel.ep=8"}}) {
    const StepTime t = time_of("zaya1-8b", keys, 16);
    const double sum = t.forward_s + t.recompute_s + t.loss_s + t.backward_s + t.weights_s +
                       t.optimizer_s + t.gather_wait_s + t.gradients_wait_s + t.tp_s + t.cp_s +
                       t.tsp_s + t.ep_s + t.pp_s + t.bubble_s + t.muon_s + t.reading_s;
    EXPECT_DOUBLE_EQ(t.total_s, sum);
    EXPECT_GT(t.total_s, 0);
  }
}

TEST(StepTime, ProductsTakeAtLeastTheirFlop) {
  const StepShape shape = shape_of("llama3-8b", {"train.global_batch=64"}, 8);
  const MachineRates rates(dgx(), {}, 8, true);
  const StepTime t = step_time(shape, rates);
  const double flop =
      model_flop(shape.model, shape.sequence_length).training * double(shape.tokens()) / 8;
  const double kernels_s = t.forward_s + t.loss_s + t.backward_s;
  EXPECT_GT(kernels_s, rates.product_s(flop));
  EXPECT_LT(kernels_s, 1.25 * rates.product_s(flop));
}

// The stream before every block, and the one inside a block.
TEST(StepTime, ABf16StreamHalvesWhatRecomputationKeeps) {
  const auto shape = [](const char* stream) {
    return shape_of(
        "llama3-8b",
        {"train.recompute=true", "train.precision=bf16", std::string("train.stream=") + stream}, 8);
  };
  const StepShape narrow = shape("bf16");
  const double tokens = double(narrow.micro_batch * narrow.sequence_length);
  const double streams = double(narrow.model.num_blocks() + 1);
  EXPECT_DOUBLE_EQ(step_memory(shape("fp32")).saved - step_memory(narrow).saved,
                   2 * streams * tokens * double(narrow.model.hidden_size));
}

// On 2 nodes of 8 A100: 200 GB/s and 10 us inside, see machines/a100-dgx.toml for the rest.
TEST(MachineRates, HalvesOfAnAllReduceTakeTwoLevelsToo) {
  const machine::Profile profile = dgx();
  const auto rate = [&](const std::string& key) {
    const auto* usable = profile.find("topology." + key + "_usable");
    return 1e9 * profile.need("topology." + key).value * (usable ? usable->value : 1);
  };
  const auto latency_s = [&](const std::string& key) {
    return 1e-6 * profile.need("topology." + key + "_latency").value;
  };
  const double S = 1 << 20, N = 32;
  const MachineRates rates(profile, {}, 8 * int64_t(N), true);
  const RankSpan all = rates.group(8 * int64_t(N), 1);
  ASSERT_EQ(all.nodes, int64_t(N));
  const double half_s = 7 * latency_s("link") + 7.0 / 8 * S / rate("link") +
                        (N - 1) * latency_s("nic") + (N - 1) / N * S / 8 / rate("nic");
  using machine::CollectiveOp;
  for (const CollectiveOp op : {CollectiveOp::kReduceScatter, CollectiveOp::kAllGather})
    EXPECT_NEAR(rates.collective_s(op, all, S), half_s, 1e-9 * half_s);
  // A tree has fewer hops than both halves, and more bytes.
  EXPECT_LT(rates.collective_s(CollectiveOp::kAllReduce, all, S), 2 * half_s);
}

TEST(StepTime, SameInputSameBits) {
  const std::vector<std::string> keys = {"parallel.zero=2"};
  EXPECT_EQ(time_of("zaya1-8b", keys, 16).total_s, time_of("zaya1-8b", keys, 16).total_s);
}

TEST(StepTime, AThousandLayoutsASecond) {
  const StepShape shape = shape_of("zaya1-8b", {}, 64);
  const MachineRates rates(dgx(), {}, 64, true);
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  for (int i = 0; i < 200; ++i) sum += step_time(shape, rates).total_s + step_memory(shape).total;
  const std::chrono::duration<double> s = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(sum, 0);
  EXPECT_LT(s.count(), 2) << "ten times slower than it should be";
}

}  // namespace
}  // namespace ashlar::sizing
