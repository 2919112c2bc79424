// Models that Hugging Face transformers saved, with the loss and the gradients that it computed, on
// a GPU, which is an emulator here.
#include <gtest/gtest.h>

#include "ashlar/models/hf/names.h"
#include "ashlar/models/source.h"
#include "ashlar/nn/weights.h"
#include "ashlar/train/read_recipe.h"
#include "tests/support/read_json.h"
#include "tests/support/temporary_directory.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;
using ashlar::testing_support::TemporaryDirectory;

// The norms of gradients by the names of transformers, which may put together native tensors.
std::map<std::string, double> norms_by_hf_name(const ModelSpec& spec, const Tensors& gradients) {
  const std::vector<LogicalTensor> natives = nn::logical_tensors(spec);
  std::map<std::string, double> norms;
  for (const auto& tensor : models::file_tensors(natives, spec.blocks, models::HfLayout::kNative,
                                                 models::names_of(spec))) {
    double squares = 0;
    for (const models::FileRows& rows : tensor.rows)
      for (const float g : gradients.at(natives[rows.native].name))
        squares += double(g) * double(g);
    norms[tensor.name] = std::sqrt(squares);
  }
  return norms;
}

class GpuGolden : public testing::TestWithParam<const char*> {};

TEST_P(GpuGolden, HasTheLossAndTheGradientsOfTransformers) {
  const std::string directory = std::string(ASHLAR_FIXTURES) + "/" + GetParam();
  const nlohmann::json expected =
      ashlar::testing_support::read_json(GetParam() + std::string("/expected.json"));
  const auto ids = expected.at("ids").get<std::vector<int32_t>>();
  const auto targets = expected.at("targets").get<std::vector<int32_t>>();
  const auto files = posix_files();
  const TemporaryDirectory scratch;
  write_text(*files, scratch / "recipe.toml", "[train]\nmicro_batch = 1\nglobal_batch = 1\n");
  const Overrides overrides = {"init.model=" + directory, "train.precision=fp32",
                               fmt::format("data.sequence_length={}", ids.size())};
  const Recipe recipe = read_recipe(*files, scratch / "recipe.toml", overrides);

  TestedTrainer gpu(recipe, DType::kF32, On::kGpu);
  Log silent([](std::string_view) {});
  models::read_weights(*files, models::find_model(*files, directory, silent),
                       gpu.trainer().model().pieces(false));
  gpu.trainer().weights_changed();
  const std::vector<Segment> whole = {{0, int64_t(ids.size()), 0, 0}};
  const std::vector<MicroBatch> batches = {{ids, targets, whole}};
  const double loss = expected.at("loss").get<double>();
  EXPECT_NEAR(gpu.measure(0, batches).loss, loss, 1e-4 * loss);
  const auto norms = norms_by_hf_name(model_of(recipe.model), gpu.gradients());
  for (const auto& [name, norm] : expected.at("grad_norm").items()) {
    const double want = norm.get<double>();
    ASSERT_TRUE(norms.contains(name)) << name;
    EXPECT_NEAR(norms.at(name), want, 1e-3 * want) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Llamas, GpuGolden, testing::Values("hf_llama", "hf_qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ashlar::train
