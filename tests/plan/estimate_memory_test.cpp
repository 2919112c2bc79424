// Memory by closed formulas against the dry run, which counts what the allocator gives; in fp32,
// whose operands are as large on every instruction set.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ashlar/nn/weights.h"
#include "ashlar/sizing/step_time.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/training_flop.h"

namespace ashlar::plan {
namespace {

struct Both {
  sizing::MemoryEstimate estimated;
  std::array<double, kNumTags> counted{};  // of the fullest rank
  double total = 0;
};

Both memory_of(const char* recipe_name, std::vector<std::string> keys, int ranks) {
  keys.push_back("train.threads=1");
  const Recipe recipe =
      load_recipe(fmt::format("{}/../../recipes/{}.toml", ASHLAR_FIXTURES, recipe_name), keys);
  Both both;
  both.estimated =
      sizing::step_memory(sizing::step_shape(recipe, resolve_parallel(recipe, ranks), false));
  for (int rank = 0; rank < ranks; ++rank) {
    const train::RunPlan plan = train::plan_run(recipe, DType::kF32, ranks, 1, rank);
    if (double(plan.memory.total.peak_bytes) <= both.total) continue;
    both.total = double(plan.memory.total.peak_bytes);
    for (int tag = 0; tag < kNumTags; ++tag)
      both.counted[size_t(tag)] = double(plan.memory.tags[size_t(tag)].peak_bytes);
  }
  return both;
}

void expect_near(const char* recipe, const std::vector<std::string>& keys, int ranks,
                 double tolerance) {
  const Both both = memory_of(recipe, keys, ranks);
  const std::string layout = fmt::format("{} on {}: {}", recipe, ranks, keys.front());
  const auto near = [&](const char* what, double estimated, double counted) {
    EXPECT_NEAR(estimated / counted, 1, tolerance)
        << layout << ", " << what << ": " << 1e-6 * estimated << " MB, counted " << 1e-6 * counted;
  };
  near("total", both.estimated.total, both.total);
  near("weights", both.estimated.weights, both.counted[size_t(Tag::kWeights)]);
  near("gradients", both.estimated.gradients, both.counted[size_t(Tag::kGradients)]);
  near("optimizer", both.estimated.optimizer, both.counted[size_t(Tag::kOptimizer)]);
  near("saved", both.estimated.saved, both.counted[size_t(Tag::kSaved)]);
}

// Estimators are known to price experts as dense layers, to divide them by tp where ep divides
// them, and to take every stage for the mean one.
TEST(EstimateMemory, W8ExpertsStagesAndEndsAreCountedAsTheyAre) {
  const std::vector<std::string> batch = {"train.global_batch=16", "train.micro_batch=1"};
  const auto with = [&](std::vector<std::string> keys) {
    keys.insert(keys.end(), batch.begin(), batch.end());
    return keys;
  };
  expect_near("moe-nano", with({"parallel.zero=1"}), 2, 0.15);
  expect_near("moe-nano", with({"parallel.ep=4"}), 4, 0.15);
  expect_near("moe-nano", with({"parallel.tp=2", "parallel.ep=4"}), 8, 0.15);
  expect_near("zaya1-nano", with({"parallel.ep=2"}), 4, 0.15);
  // Seven blocks in three stages; the embedding is on the first and the last.
  expect_near("moe-nano", with({"parallel.pp=3", "train.global_batch=12"}), 3, 0.15);
  expect_near("llama-nano", with({"parallel.pp=2"}), 2, 0.15);
}

// Every stage of ZeRO by tag, ZeRO 1 with its own multipliers.
TEST(EstimateMemory, W9EveryZeroStageByTag) {
  for (const char* zero : {"0", "1", "2", "3"})
    expect_near(
        "llama-nano",
        {fmt::format("parallel.zero={}", zero), "train.global_batch=16", "train.micro_batch=1"}, 4,
        0.15);
}

// Runs that train adapters or some of the tensors: frozen weights are whole on every data rank.
TEST(EstimateMemory, FrozenWeightsAndAdaptersByTag) {
  const auto lora = [](const char* layout, const char* targets) {
    return std::vector<std::string>{layout,
                                    targets,
                                    "init.model=none",
                                    "lora.rank=64",
                                    "train.global_batch=16",
                                    "train.micro_batch=1"};
  };
  expect_near("llama-nano", lora("parallel.zero=0", "lora.targets=attention,mlp"), 2, 0.15);
  expect_near("llama-nano", lora("parallel.zero=3", "lora.targets=attention,mlp"), 4, 0.15);
  expect_near("llama-nano", lora("parallel.tp=2", "lora.targets=attention"), 2, 0.15);
  expect_near("moe-nano", lora("parallel.ep=4", "lora.targets=attention,experts"), 4, 0.15);
  expect_near(
      "llama-nano",
      {"parallel.zero=1", "init.model=none", "train.freeze=*.mlp.*,model.embed_tokens.weight",
       "train.global_batch=16", "train.micro_batch=1"},
      2, 0.15);
}

// Weights of products are counted from shapes here, and from the model's list there.
TEST(EstimateFlop, AdaptersTakeTheTimeOfTheirFlop) {
  const machine::Profile machine =
      machine::parse_profile(machine::shipped_text("a100-dgx"), "a100-dgx");
  const sizing::MachineRates rates(machine, {}, 8, true);
  const auto kernels_s = [&](const std::vector<std::string>& keys) {
    const Recipe recipe =
        load_recipe(fmt::format("{}/../../recipes/llama3-8b.toml", ASHLAR_FIXTURES), keys);
    const sizing::StepTime t =
        sizing::step_time(sizing::step_shape(recipe, resolve_parallel(recipe, 8), true), rates);
    const double flop = train::training_flop(recipe) * double(recipe.train.global_batch) *
                        double(recipe.data.sequence_length) / 8;
    const double seconds = t.forward_s + t.loss_s + t.backward_s;
    EXPECT_GT(seconds, rates.product_s(flop));
    EXPECT_LT(seconds, 1.35 * rates.product_s(flop));
    return seconds;
  };
  const std::vector<std::string> all = {"train.global_batch=64"},
                                 lora = {"train.global_batch=64", "init.model=none", "lora.rank=64",
                                         "lora.targets=attention,mlp"};
  EXPECT_LT(kernels_s(lora), 0.8 * kernels_s(all));
}

// The formulas know matrices by name, shape and cut: they are those of the model's own list.
TEST(EstimateMatrices, AreTheProductsOfTheModel) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> cases = {
      {"zaya1-nano", {}},
      {"llama-nano", {"model.attention_output_gate=true"}},
      {"moe-nano", {"model.shared_expert_intermediate_size=64"}},
      {"linear-nano", {}}};
  for (const auto& [name, keys] : cases) {
    const ModelSpec model = model_of(
        load_recipe(fmt::format("{}/../../recipes/{}.toml", ASHLAR_FIXTURES, name), keys).model);
    std::map<std::string, nn::ParameterInfo> infos;
    const nn::ModelWeights weights(model);
    weights.for_each([&](const nn::ParameterInfo& info, const Tensor&, const Tensor&) {
      infos[info.name] = info;
    });
    for (int64_t l = 0; l < model.num_blocks(); ++l)
      for (const sizing::MatrixStack& m :
           sizing::matrices_of(model.blocks[size_t(l)], double(model.hidden_size))) {
        const std::string full = fmt::format("model.layers.{}.{}", l, m.name);
        ASSERT_TRUE(infos.contains(full)) << name << ": " << full;
        const nn::ParameterInfo& info = infos.at(full);
        const int last = info.shape.ndim() - 1;
        EXPECT_EQ(double(info.shape[last]), m.cols) << full;
        EXPECT_EQ(double(info.shape[last - 1]), m.rows) << full;
        EXPECT_EQ(double(info.shape.numel()), m.numel()) << full;
        const bool cut = m.cut != sizing::TpCut::kNone;
        ASSERT_EQ(!info.cuts.empty(), cut) << full;
        if (!cut) continue;
        EXPECT_EQ(info.cuts.back().dim == last, m.cut == sizing::TpCut::kCols) << full;
      }
  }
}

}  // namespace
}  // namespace ashlar::plan
