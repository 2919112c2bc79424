// Models that Hugging Face transformers saved, on a GPU, which may be an emulator: the loss that
// transformers computed, and the gradients of the CPU, which tests/eval/hf_golden_test.cpp holds to
// those of transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/models/source.h"
#include "ashlar/train/read_recipe.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using ashlar::testing_support::TemporaryDirectory;

// A program that travels finds the models where the variable says.
std::string golden_models() {
  const char* elsewhere = std::getenv("ASHLAR_FIXTURES");
  return elsewhere ? elsewhere : ASHLAR_FIXTURES;
}

class GpuGolden : public testing::TestWithParam<const char*> {};

TEST_P(GpuGolden, HasTheLossOfTransformersAndTheGradientsOfTheCpu) {
  const std::string directory = golden_models() + "/" + GetParam();
  std::ifstream file(directory + "/expected.json");
  ASSERT_TRUE(file.good()) << directory;
  const nlohmann::json expected = nlohmann::json::parse(file);
  const auto ids = expected.at("ids").get<std::vector<int32_t>>();
  const auto targets = expected.at("targets").get<std::vector<int32_t>>();
  const auto files = posix_files();
  const TemporaryDirectory scratch;
  write_text(*files, scratch / "recipe.toml", "[train]\nmicro_batch = 1\nglobal_batch = 1\n");
  const Overrides overrides = {"init.model=" + directory, "train.precision=fp32",
                               fmt::format("data.sequence_length={}", ids.size())};
  const Recipe recipe = read_recipe(*files, scratch / "recipe.toml", overrides);

  TestedTrainer cpu(recipe, DType::kF32, On::kCpu), gpu(recipe, DType::kF32, On::kGpu);
  Log silent([](std::string_view) {});
  const std::vector<Segment> whole = {{0, int64_t(ids.size()), 0, 0}};
  const std::vector<MicroBatch> batches = {{ids, targets, whole}};
  const double want = expected.at("loss").get<double>();
  for (TestedTrainer* tested : {&cpu, &gpu}) {
    models::read_weights(*files, models::find_model(*files, directory, silent),
                         tested->trainer().model().pieces(false));
    tested->trainer().weights_changed();
    const double loss = tested->measure(0, batches).loss;
    EXPECT_NEAR(loss, want, 1e-4 * want);
    RecordProperty("loss_difference", fmt::format("{:.3g}", std::abs(loss / want - 1)));
  }
  expect_near(gpu.gradients(), cpu.gradients(), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuGolden,
                         testing::Values("hf_llama", "hf_qwen3", "hf_small", "hf_mixtral",
                                         "hf_qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ashlar::train
