// tests/fixtures/hf_variants.json: what Hugging Face transformers computes from small models whose
// config.json states biases, windows and RoPE in all the ways that are followed
// (scripts/peers/hf_variants.py).  Weights follow from the names of the files' tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/checkpoint/format/safetensors.h"
#include "ashlar/core/rng.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/load.h"
#include "ashlar/eval/score.h"
#include "ashlar/models/hf/model.h"
#include "tests/eval/hf_gradients.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/read_json.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::eval {
namespace {

using namespace parallel::testing_support;
using models::HfLayout;

const nlohmann::json& expected() {
  static const nlohmann::json json = ashlar::testing_support::read_json("hf_variants.json");
  return json;
}

// Element i of a file's tensor, as the script makes it.
float weight(const std::string& name, int64_t i) {
  const double u = double(splitmix64(fnv1a64(name) + uint64_t(i)) >> 40) / 8388608.0 - 1.0;
  return float(name.find("norm.weight") != std::string::npos ? 1 + 0.1 * u : 0.5 * u);
}

void write_file(FileSystem& files, const std::string& path, std::string_view bytes) {
  const auto file = files.create(path);
  file->write_at(std::as_bytes(std::span(bytes.data(), bytes.size())), 0);
  file->close();
}

// Writes /model with that config.json and the weights that its tensors have by their names.
void write_model(FileSystem& files, const std::string& config_text) {
  const models::HfConfig config = models::parse_hf_config(config_text, "config.json");
  const ModelSpec& spec = config.model;
  const std::vector<LogicalTensor> natives = nn::logical_tensors(spec);
  std::vector<checkpoint::TensorSpec> specs;
  std::string data;
  for (const auto& tensor :
       models::file_tensors(natives, spec.blocks, HfLayout::kNative, config.names)) {
    const auto dims = tensor.shape.dims();
    specs.push_back({tensor.name, DType::kF32, {dims.begin(), dims.end()}});
    std::vector<float> values;
    for (int64_t i = 0; i < tensor.shape.numel(); ++i) values.push_back(weight(tensor.name, i));
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  const auto plan =
      checkpoint::plan_safetensors(specs, {{"format", "pt"}}, checkpoint::HeaderStyle::kPlain);
  files.make_directories("/model");
  write_file(files, "/model/config.json", config_text);
  write_file(files, "/model/model.safetensors", plan.header + data);
}

class HfVariants : public testing::TestWithParam<size_t> {
 protected:
  HfVariants() {
    write_model(*files_, variant_["config"].dump());
    source_ = find_model(*files_, "/model", log_);
  }
  void check_scores(const ModelSource& source) {
    const auto T = int64_t(ids_.size());
    Runtime runtime(*files_, source, DType::kF32, {.max_positions = T, .max_call = T}, 1);
    const Scores scores = score(runtime.ctx, runtime.allocator, runtime.model, ids_);
    EXPECT_LT(relative(scores.loss, variant_["loss"]), 1e-5);
    for (const auto& [token, logits] : variant_["logits"].items()) {
      const size_t V = logits.size(), t = std::stoul(token);
      const auto found = scores.logits.tensor.span<float>().subspan(t * V, V);
      for (size_t v = 0; v < V; ++v) EXPECT_NEAR(found[v], double(logits[v]), 2e-5) << t;
    }
  }
  std::vector<int32_t> continued(std::vector<int32_t> prompt, size_t length) {
    const auto T = int64_t(length);
    Runtime runtime(
        *files_, source_, DType::kF32,
        {.max_positions = T, .max_call = T, .cached = true, .first_tokens = int64_t(prompt.size())},
        1);
    Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, T, 5);
    const GenerateSpec spec{.max_tokens = T - int64_t(prompt.size()), .sampling = {}};
    const auto made = generate(decoder, prompt, spec, [](int32_t) {});
    prompt.insert(prompt.end(), made.begin(), made.end());
    return prompt;
  }

  const nlohmann::json& variant_ = expected()["variants"][GetParam()];
  const std::vector<int32_t> ids_ = expected()["ids"];
  std::unique_ptr<FileSystem> files_ = memory_files();
  Log log_{[](std::string_view) {}};
  ModelSource source_;
};

TEST_P(HfVariants, Scores) {
  check_scores(source_);
}

TEST_P(HfVariants, GradientNorms) {
  const auto T = int64_t(ids_.size());
  ModelKeys keys = keys_of(source_.spec);
  keys.max_position_embeddings = std::max(keys.max_position_embeddings, T);
  TinyRank rank(recipe_of(keys, 1, T), {.compute = DType::kF64});
  read_weights(*files_, source_, rank.model.pieces(false));
  rank.model.weights_changed();
  std::vector<int32_t> targets(ids_.begin() + 1, ids_.end());
  targets.push_back(-1);
  const parallel::LossSum losses = rank.step({ids_, targets, {{0, T, 0, 0}}});
  EXPECT_LT(relative(losses.sum / double(losses.count), variant_["loss"]), 2e-6);
  const auto sums = squares_by_name(source_.spec, whole_gradients(rank.model));
  // Ours are means over all tokens, the last of which has no target.
  const double scale = double(T) / double(T - 1);
  for (const auto& [name, sum] : sums)
    EXPECT_LT(relative(scale * std::sqrt(sum), variant_["grad_norm"].at(name)), 1e-5) << name;
  EXPECT_EQ(sums.size(), variant_["grad_norm"].size());
}

// From a few tokens on, and from more than some of the models were made for.
TEST_P(HfVariants, GreedyContinuations) {
  const auto greedy = variant_["greedy"].get<std::vector<int32_t>>();
  EXPECT_EQ(continued({greedy.begin(), greedy.begin() + 4}, greedy.size()), greedy);
  const auto beyond = variant_["continued"].get<std::vector<int32_t>>();
  EXPECT_EQ(continued(ids_, beyond.size()), beyond);
}

TEST_P(HfVariants, ExportsComeBackTheSame) {
  Allocator allocator(Device::kCpu);
  std::vector<OwnedTensor> owned;
  std::vector<Piece> pieces;
  for (const LogicalTensor& logical : nn::logical_tensors(source_.spec)) {
    owned.push_back(make_tensor(allocator, DType::kF32, logical.global_shape, Tag::kWeights));
    pieces.push_back({logical, Box::whole(logical.global_shape), owned.back().tensor});
  }
  read_weights(*files_, source_, pieces);
  models::HfWriteOptions options;
  options.dtype = DType::kF32;
  models::write_hf_model(*files_, "/export", source_.spec, pieces, options);
  const auto exported = models::HfModel::open(*files_, "/export");
  EXPECT_TRUE(exported.warnings().empty()) << exported.warnings()[0];
  const ModelSource again = find_model(*files_, "/export", log_);
  EXPECT_EQ(to_json(again.spec), to_json(source_.spec));
  check_scores(again);
}

std::string variant_name(const testing::TestParamInfo<size_t>& info) {
  std::string name = expected()["variants"][info.param]["name"];
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, HfVariants, testing::Range(size_t{0}, expected()["variants"].size()),
                         variant_name);

}  // namespace
}  // namespace ashlar::eval
