// The trainer on a GPU, which is an emulator here, against the trainer on the CPU.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "ashlar/kernels/gpu/emulator/mode.h"
#include "tests/support/errors.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using ashlar::testing_support::message_of;

struct GpuCase {
  std::string name;
  Recipe (*tiny)(const Overrides&);
  Overrides overrides;
  DType compute;
  double gradients;  // tolerance of each
};
void PrintTo(const GpuCase& c, std::ostream* out) {
  *out << c.name;
}
const Overrides kAdapters = {"init.model=base", "lora.rank=4", "lora.alpha=12",
                             "lora.targets=attention,mlp"};
// The CPU and a GPU round bf16 at different places, which may send a token to another expert: of
// mixtures only fp32 is compared.
const std::vector<GpuCase> kGpuCases = {
    {"llama_fp32", tiny_llama, {}, DType::kF32, 2e-5},
    {"llama_bf16", tiny_llama, {}, DType::kBF16, 2e-2},
    {"llama_bf16_stream",
     tiny_llama,
     {"train.stream=bf16", "train.precision=bf16"},
     DType::kBF16,
     2e-2},
    {"llama_fp32_adamw", tiny_llama, {"optim.matrices=adamw"}, DType::kF32, 2e-5},
    {"llama_fp32_recompute", tiny_llama, {"train.recompute=true"}, DType::kF32, 2e-5},
    {"llama_fp32_window_qk_norm",
     tiny_llama,
     {"model.layer_types=sliding_attention", "model.sliding_window=9", "model.qk_norm=rms"},
     DType::kF32,
     2e-5},
    {"llama_fp32_adapters", tiny_llama, kAdapters, DType::kF32, 2e-5},
    {"zaya1_fp32", tiny_zaya1, {}, DType::kF32, 2e-5},
    {"zaya1_fp32_window_recompute",
     tiny_zaya1,
     {"model.layer_types=alternate", "model.sliding_window=9", "train.recompute=true"},
     DType::kF32,
     2e-5},
    {"moe_fp32", tiny_moe, {}, DType::kF32, 2e-5},
    {"moe_fp32_bias_recompute",
     tiny_moe,
     {"model.num_experts_per_tok=3", "model.attention_bias=qkvo", "train.recompute=true"},
     DType::kF32,
     2e-5},
};

class GpuTraining : public testing::TestWithParam<GpuCase> {};

TEST_P(GpuTraining, GradientsAreThoseOfTheCpu) {
  const Recipe recipe = GetParam().tiny(GetParam().overrides);
  TestedTrainer cpu(recipe, GetParam().compute, On::kCpu);
  TestedTrainer gpu(recipe, GetParam().compute, On::kGpu);
  expect_same_bits(gpu.values(), cpu.values());
  EXPECT_NEAR(gpu.evaluate(), cpu.evaluate(), 1e-3);
  const StepStats want = cpu.measure(0), got = gpu.measure(0);
  EXPECT_EQ(got.num_targets, want.num_targets);
  EXPECT_NEAR(got.loss, want.loss, GetParam().gradients * want.loss);
  EXPECT_NEAR(got.gradient_norm, want.gradient_norm, GetParam().gradients * want.gradient_norm);
  expect_near(gpu.gradients(), cpu.gradients(), GetParam().gradients);
}

TEST_P(GpuTraining, TakesTheMemoryOfItsPlanAndWaitsOnceAStep) {
  TestedTrainer gpu(GetParam().tiny(GetParam().overrides), GetParam().compute, On::kGpu);
  gpu.evaluate();
  gpu.step(0);
  const MemoryCounts real = gpu.allocator().counts();
  for (int tag = 0; tag < kNumTags; ++tag)
    EXPECT_EQ(real.tags[size_t(tag)].peak_bytes, gpu.plan.memory.tags[size_t(tag)].peak_bytes)
        << name_of(Tag(tag));
  EXPECT_EQ(real.total.peak_bytes, gpu.plan.memory.total.peak_bytes);
  EXPECT_EQ(real.num_allocations, gpu.plan.memory.num_allocations);
  EXPECT_EQ(gpu.trainer().peak_memory(), gpu.plan.step_memory);
  EXPECT_EQ(gpu.gpu_memory().pinned().counts().total.peak_bytes, gpu.plan.pinned_bytes);
  const int64_t before = gpu.gpu_memory().stream().num_waits();
  gpu.step(1);
  EXPECT_EQ(gpu.gpu_memory().stream().num_waits() - before, 1);
  EXPECT_EQ(gpu.allocator().counts().num_allocations, real.num_allocations);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuTraining, testing::ValuesIn(kGpuCases),
                         [](const auto& info) { return info.param.name; });

TEST(GpuSteps, AnotherRunAndOneThatRecomputesHaveTheSameBits) {
  for (const auto& tiny : {tiny_llama, tiny_zaya1, tiny_moe}) {
    std::vector<Tensors> weights;
    for (const char* recompute :
         {"train.recompute=false", "train.recompute=false", "train.recompute=true"}) {
      TestedTrainer gpu(tiny({recompute}), DType::kBF16, On::kGpu);
      for (int64_t number = 0; number < 2; ++number) gpu.step(number);
      weights.push_back(gpu.values());
    }
    expect_same_bits(weights[1], weights[0]);
    expect_same_bits(weights[2], weights[0]);
  }
}

// With memory that is closed to the host, as a card's is, whatever reads it in a step but launches,
// copies and downloads ends the program.
TEST(GpuSteps, TheHostTouchesNoMemoryOfTheGpu) {
  for (const auto& tiny : {tiny_llama, tiny_zaya1, tiny_moe}) {
    TestedTrainer gpu(tiny({"train.global_batch=2"}), DType::kBF16, On::kGpu);
    const volatile std::byte* weight = gpu.trainer().model().parameters()[0].value.data;
    device::emulator::close_to_host(true);
    EXPECT_EXIT(std::exit(int(*weight)), testing::KilledBySignal(SIGSEGV), "");
    EXPECT_GT(gpu.step(0).loss, 0);
    EXPECT_GT(gpu.evaluate(), 0);
    device::emulator::close_to_host(false);
  }
}

// The weights of both sides drift apart slowly: losses stay together for a while.
void expect_losses_of_the_cpu(const Recipe& recipe) {
  TestedTrainer cpu(recipe, DType::kF32, On::kCpu);
  TestedTrainer gpu(recipe, DType::kF32, On::kGpu);
  double first = 0, last = 0;
  for (int64_t number = 0; number < 12; ++number) {
    last = cpu.step(number).loss;
    if (number == 0) first = last;
    EXPECT_NEAR(gpu.step(number).loss, last, 1e-4 * last) << "step " << number;
  }
  EXPECT_LT(last, first - 0.1);  // it learns
}

TEST(GpuSteps, LossesOfLlamaAreThoseOfTheCpu) {
  expect_losses_of_the_cpu(tiny_llama());
}
// At first B is zero, and so is the gradient of A.
TEST(GpuSteps, BothFactorsOfAdaptersFollowTheCpu) {
  const Recipe recipe = tiny_llama(kAdapters);
  TestedTrainer cpu(recipe, DType::kF32, On::kCpu), gpu(recipe, DType::kF32, On::kGpu);
  for (TestedTrainer* tested : {&cpu, &gpu}) {
    tested->step(0);
    tested->measure(1);
  }
  const Tensors want = cpu.gradients();
  EXPECT_EQ(want.size(), 2u * 2 * 7);  // two factors in each of two blocks for seven tensors
  for (const auto& [name, values] : want)
    EXPECT_GT(distance(values, std::vector<float>(values.size(), 0)), 0) << name;
  expect_near(gpu.gradients(), want, 1e-3);
}

TEST(Long, LossesOfZaya1AreThoseOfTheCpu) {
  expect_losses_of_the_cpu(tiny_zaya1());
}
TEST(Long, LossesOfMoeAreThoseOfTheCpu) {
  expect_losses_of_the_cpu(tiny_moe());
}

// A shipped recipe: losses, and the memory of the plan.
void expect_nano(const std::string& family, int64_t num_steps, Overrides overrides = {}) {
  overrides.push_back("train.threads=2");
  const Recipe recipe = load_recipe(nano(family), overrides);
  TestedTrainer cpu(recipe, DType::kBF16, On::kCpu);
  TestedTrainer gpu(recipe, DType::kBF16, On::kGpu);
  for (int64_t number = 0; number < num_steps; ++number) {
    const double want = cpu.step(number).loss;
    EXPECT_NEAR(gpu.step(number).loss, want, 2e-3 * want) << "step " << number;
  }
  gpu.evaluate();
  const MemoryCounts real = gpu.allocator().counts();
  for (int tag = 0; tag < kNumTags; ++tag)
    EXPECT_EQ(real.tags[size_t(tag)].peak_bytes, gpu.plan.memory.tags[size_t(tag)].peak_bytes)
        << name_of(Tag(tag));
  EXPECT_EQ(gpu.trainer().peak_memory(), gpu.plan.step_memory);
}

// A sixteenth of the tokens of a step, without the products of Muon, which take a minute here.
const Overrides kFewTokens = {"train.micro_batch=1", "train.global_batch=1",
                              "data.sequence_length=128", "optim.matrices=adamw"};

TEST(Long, LlamaTakesTwoSteps) {
  expect_nano("llama", 2, kFewTokens);
}
TEST(Long, Zaya1TakesTwoSteps) {
  expect_nano("zaya1", 2, kFewTokens);
}

// Muon's products, which the CPU and the emulator multiply alike, take most of the time.
const Overrides kOneSequence = {"train.micro_batch=1", "train.global_batch=1",
                                "optim.muon_steps=2"};

TEST(Nightly, LlamaTakesTwentySteps) {
  expect_nano("llama", 20, kOneSequence);
}
TEST(Nightly, Zaya1TakesTwentySteps) {
  expect_nano("zaya1", 20, kOneSequence);
}
TEST(Nightly, MoeTakesTwentySteps) {
  expect_nano("moe", 20, kOneSequence);
}

TEST(GpuChoice, RefusesWhatGpusDoNotDo) {
  Log silent([](std::string_view) {});
  const auto message = [&](ErrorKind kind, const Overrides& overrides, int num_ranks) {
    Overrides all = {"train.device=gpu"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return message_of(kind, [&] { choose_gpu(tiny_llama(all), num_ranks, silent); });
  };
  EXPECT_EQ(message(ErrorKind::kConfig, {}, 2),
            "train.device is gpu, but there are 2 ranks, and a GPU serves one so far; choose "
            "train.device=cpu");
  EXPECT_EQ(message(ErrorKind::kConfig, {"train.precision=fp64"}, 1),
            "train.device is gpu, but train.precision is fp64, which GPUs do not compute here; "
            "choose train.device=cpu");
  EXPECT_EQ(
      message(ErrorKind::kDevice, {"model.layer_types=linear_attention"}, 1),
      "train.device is gpu, but linear_heads_forward has no GPU path yet; the CPU has one; or "
      "choose train.device=cpu");
}

TEST(GpuChoice, TakesTheCpuByItselfWhereNoGpuPathIs) {
  std::vector<std::string> lines;
  Log log([&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_TRUE(choose_gpu(tiny_llama(), 1, log));
  EXPECT_FALSE(choose_gpu(tiny_llama({"train.device=cpu"}), 1, log));
  EXPECT_FALSE(choose_gpu(tiny_llama({"model.layer_types=linear_attention"}), 1, log));
  EXPECT_FALSE(choose_gpu(tiny_llama(), 2, log));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("train.device is auto: emulator"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("train.device is auto: the CPU, for linear_heads_forward"),
            std::string::npos)
      << lines[1];
  EXPECT_NE(lines[2].find("train.device is auto: the CPU, for there are 2 ranks"),
            std::string::npos)
      << lines[2];
}

}  // namespace
}  // namespace ashlar::train
