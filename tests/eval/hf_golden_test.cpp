// tests/fixtures/hf_*: random models of several families that Hugging Face transformers saved, with
// what transformers computed from each in fp32.  Ashlar must say the same, whichever form it loads
// the weights from.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "ashlar/checkpoint/save/checkpointer.h"
#include "ashlar/eval/generate.h"
#include "ashlar/eval/load.h"
#include "ashlar/eval/score.h"
#include "ashlar/models/hf/model.h"
#include "ashlar/models/step_model.h"
#include "tests/eval/hf_gradients.h"
#include "tests/parallel/tiny_rank.h"
#include "tests/support/read_json.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::eval {
namespace {

using namespace parallel::testing_support;

constexpr double kTolerance = 1e-5;  // relative
enum class Form { kSaved, kLegacy, kSharded, kCheckpoint };
struct GoldenCase {
  const char* directory;  // of tests/fixtures
  Form form;
};

// The model where `form` says, made from the saved one.
struct Loaded {
  explicit Loaded(const GoldenCase& c)
      : saved_path(std::string(ASHLAR_FIXTURES) + "/" + c.directory),
        files(c.form == Form::kSaved ? posix_files() : memory_files()) {
    source = find_model(*files, c.form == Form::kSaved ? saved_path : convert(c.form), log);
  }
  std::string convert(Form form);

  std::string saved_path;
  Log log{[](std::string_view) {}};
  std::unique_ptr<FileSystem> files;
  ModelSource source;
};

std::string Loaded::convert(Form form) {
  const auto disk = posix_files();
  const ModelSource saved = find_model(*disk, saved_path, log);
  Allocator allocator(Device::kCpu);
  std::vector<OwnedTensor> owned;
  std::vector<Piece> pieces;
  for (const LogicalTensor& logical : nn::logical_tensors(saved.spec)) {
    owned.push_back(make_tensor(allocator, DType::kF32, logical.global_shape, Tag::kWeights));
    pieces.push_back({logical, Box::whole(logical.global_shape), owned.back().tensor});
  }
  read_weights(*disk, saved, pieces);
  if (form != Form::kCheckpoint) {
    models::HfWriteOptions options;
    if (form == Form::kLegacy) options.layout = models::HfLayout::kLegacy;
    if (form == Form::kSharded) options.max_file_bytes = 16 << 10;
    options.dtype = DType::kF32;
    models::write_hf_model(*files, "/export", saved.spec, pieces, options);
    EXPECT_EQ(models::HfModel::open(*files, "/export").layout(), options.layout);
    EXPECT_EQ(bool(files->stat("/export/model.safetensors.index.json")), form == Form::kSharded);
    return "/export";
  }
  checkpoint::CheckpointOptions options;
  options.async = false;
  checkpoint::Checkpointer checkpoints(*files, "/root", options, log);
  checkpoint::SaveRequest request;
  request.model = pieces;
  models::describe_model(saved.spec, request);
  checkpoints.save(request);
  checkpoints.wait();
  return "/root";
}

class HfGolden : public testing::TestWithParam<GoldenCase> {
 protected:
  // The prompt and the last target: score() predicts every id from those before it.
  std::vector<int32_t> scored_ids() const {
    std::vector<int32_t> ids = prompt_;
    ids.push_back(targets_.back());
    return ids;
  }

  // With the delta rule, what transformers computes in float32 is this far from what it computes in
  // float64, which grad_norm_float64 has.
  bool delta_rule() const {
    return keys_of(loaded_.source.spec).linear.kind == LinearKind::kGatedDelta;
  }
  double tolerance() const { return delta_rule() ? 3e-5 : kTolerance; }
  double gradient_tolerance() const { return delta_rule() ? 1e-4 : kTolerance; }

  Loaded loaded_{GetParam()};
  const nlohmann::json expected_ =
      ashlar::testing_support::read_json(std::string(GetParam().directory) + "/expected.json");
  const std::vector<int32_t> prompt_ = expected_["ids"], targets_ = expected_["targets"];
};

// Models with linear mixers.
ModelKeys wanted_linear(const std::string& directory) {
  const LayerType linear{LinearSpec::kKind, MoeSpec::kKind},
      moe{AttentionSpec::kKind, MoeSpec::kKind};
  ModelKeys wanted;
  wanted.num_attention_heads = 4, wanted.num_key_value_heads = 2, wanted.head_dim = 8;
  wanted.hidden_size = 32, wanted.vocab_size = 120, wanted.num_hidden_layers = 4;
  wanted.max_position_embeddings = 256, wanted.rope_theta = 1e6;
  wanted.tie_word_embeddings = false;
  wanted.router = RouterKind::kLinear, wanted.linear_router.num_chosen = 2;
  wanted.moe_intermediate_size = 24;
  wanted.linear.num_value_heads = 4, wanted.linear.key_head_dim = 8;
  wanted.linear.value_head_dim = 8;
  if (directory == "hf_minimax") {
    wanted.layer_types = {linear, moe, linear, moe};
    wanted.residual = Residual::kNormed, wanted.partial_rotary_factor = 1.0;
    wanted.linear_attn = {1.2, 1.1}, wanted.full_attn = {1.3, 0.9}, wanted.mlp = {1.1, 0.8};
    wanted.num_experts = 4, wanted.linear.num_key_heads = 4;
    wanted.linear.kind = LinearKind::kLightning, wanted.rms_norm_eps = 1e-5;
    return wanted;
  }
  wanted.layer_types = {linear, linear, linear, moe};
  wanted.residual = Residual::kPlain, wanted.partial_rotary_factor = 0.5;
  wanted.num_experts = 6, wanted.linear.num_key_heads = 2, wanted.linear.conv_taps = 4;
  wanted.linear.kind = LinearKind::kGatedDelta, wanted.rms_norm_eps = 1e-6;
  wanted.shared_expert_intermediate_size = 24, wanted.shared_expert_gate = true;
  wanted.qk_norm = QkNorm::kRms;
  wanted.zero_centered_norm = wanted.attention_output_gate = true;
  return wanted;
}

ModelKeys wanted_keys(const std::string& directory) {
  ModelKeys wanted;
  wanted.num_attention_heads = 4, wanted.num_key_value_heads = 2, wanted.head_dim = 8;
  wanted.hidden_size = 32;
  if (directory == "hf_small") {
    wanted.vocab_size = 128, wanted.num_hidden_layers = 4;
    wanted.num_experts = 4, wanted.moe_intermediate_size = 24, wanted.router_hidden_size = 12;
    wanted.rope_theta = 5e4, wanted.rope_theta_sliding = 1e3, wanted.sliding_window = 6;
    wanted.layer_types = {LayerType::kHybridSliding, LayerType::kHybrid, LayerType::kHybridSliding,
                          LayerType::kHybrid};
    wanted.max_position_embeddings = 131072;
    return wanted;
  }
  if (directory == "hf_minimax" || directory == "hf_qwen3_next") return wanted_linear(directory);
  wanted.vocab_size = 120, wanted.num_hidden_layers = 3;
  wanted.layer_types.assign(3, LayerType::kFullAttention);
  wanted.residual = Residual::kPlain, wanted.partial_rotary_factor = 1.0;
  wanted.rms_norm_eps = 1e-6, wanted.max_position_embeddings = 256;
  const LayerType moe{AttentionSpec::kKind, MoeSpec::kKind};
  const bool qwen3_moe = directory == "hf_qwen3_moe";
  if (directory == "hf_mixtral" || qwen3_moe) {
    wanted.router = RouterKind::kLinear, wanted.num_experts = 6,
    wanted.linear_router.num_chosen = 2;
    wanted.moe_intermediate_size = 24, wanted.layer_types = {moe, moe, moe};
    wanted.tie_word_embeddings = false;
    wanted.rope_theta = qwen3_moe ? 1e4 : 1e6, wanted.rms_norm_eps = qwen3_moe ? 1e-6 : 1e-5;
    if (!qwen3_moe) return wanted;
    wanted.layer_types[0] = LayerType::kFullAttention, wanted.intermediate_size = 48;
    wanted.qk_norm = QkNorm::kRms;
    return wanted;
  }
  wanted.intermediate_size = 48;
  const bool qwen3 = directory == "hf_qwen3";
  wanted.rope_theta = qwen3 ? 1e6 : 5e5;
  wanted.qk_norm = qwen3 ? QkNorm::kRms : QkNorm::kNone;
  wanted.tie_word_embeddings = qwen3;
  return wanted;
}

TEST_P(HfGolden, ShapeIsTheSavedOne) {
  EXPECT_EQ(to_json(loaded_.source.spec), to_json(model_of(wanted_keys(GetParam().directory))));
  EXPECT_EQ(loaded_.source.hugging_face, GetParam().form != Form::kCheckpoint);
}

// Weights read from any form are those that transformers wrote, bit for bit.
TEST_P(HfGolden, WeightsAreTheSavedBits) {
  const auto disk = posix_files();
  const ModelSource saved = find_model(*disk, loaded_.saved_path, loaded_.log);
  Allocator allocator(Device::kCpu);
  std::vector<OwnedTensor> owned;
  const auto read = [&](FileSystem& files, const ModelSource& source) {
    std::vector<Piece> pieces;
    for (const LogicalTensor& logical : nn::logical_tensors(saved.spec)) {
      owned.push_back(make_tensor(allocator, DType::kF32, logical.global_shape, Tag::kWeights));
      pieces.push_back({logical, Box::whole(logical.global_shape), owned.back().tensor});
    }
    models::read_weights(files, source, pieces);
    return pieces;
  };
  const std::vector<Piece> wanted = read(*disk, saved),
                           found = read(*loaded_.files, loaded_.source);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(std::memcmp(wanted[i].data.data, found[i].data.data, size_t(found[i].data.bytes())),
              0)
        << wanted[i].logical.name;
}

TEST_P(HfGolden, Scores) {
  const std::vector<int32_t> ids = scored_ids();
  const auto T = int64_t(ids.size());
  Runtime runtime(*loaded_.files, loaded_.source, DType::kF32, {.max_positions = T, .max_call = T},
                  2);
  const Scores scores = score(runtime.ctx, runtime.allocator, runtime.model, ids);
  EXPECT_LT(relative(scores.loss, expected_["loss"]), tolerance());

  const auto logits = expected_["logits"].get<std::vector<std::vector<double>>>();
  double largest = 0.0, difference = 0.0;
  for (size_t t = 0; t < logits.size(); ++t) {
    const size_t V = logits[t].size();
    const auto found = scores.logits.tensor.span<float>().subspan(t * V, V);
    for (size_t v = 0; v < V; ++v) {
      largest = std::max(largest, std::abs(logits[t][v]));
      difference = std::max(difference, std::abs(double(found[v]) - logits[t][v]));
    }
    const auto top = std::max_element(logits[t].begin(), logits[t].end());
    EXPECT_EQ(scores.argmax[t], top - logits[t].begin()) << t;
    double sum = 0.0;
    for (const double x : logits[t]) sum += std::exp(x - *top);
    const double logprob = logits[t][size_t(ids[t + 1])] - *top - std::log(sum);
    EXPECT_LT(relative(scores.logprobs[t], logprob), tolerance()) << t;
  }
  EXPECT_LT(difference, tolerance() * largest);
  EXPECT_EQ(scores.logprobs.size(), logits.size());
  EXPECT_EQ(scores.argmax.size(), ids.size());
  const double mean =
      std::accumulate(scores.logprobs.begin(), scores.logprobs.end(), 0.0) / double(T - 1);
  EXPECT_NEAR(scores.loss, -mean, 1e-12);
  ASSERT_EQ(scores.experts.size(), expected_["experts"].size());
  for (size_t l = 0; l < scores.experts.size(); ++l) {
    // One token more was scored than transformers saw.
    ASSERT_EQ(scores.experts[l].size(), expected_["experts"][l].size() + 1);
    for (size_t t = 0; t < expected_["experts"][l].size(); ++t) {
      const nlohmann::json& wanted = expected_["experts"][l][t];
      const std::vector<int32_t>& found = scores.experts[l][t];
      EXPECT_EQ(wanted.is_array() ? nlohmann::json(found) : nlohmann::json(found.at(0)), wanted)
          << "block " << l << ", token " << t;
    }
  }
}

TEST_P(HfGolden, GradientNorms) {
  const auto T = int64_t(prompt_.size());
  for (const DType compute : {DType::kF32, DType::kF64}) {
    TinyRank rank(recipe_of(keys_of(loaded_.source.spec), 1, T),
                  {.compute = compute, .num_threads = 2});
    read_weights(*loaded_.files, loaded_.source, rank.model.pieces(false));
    rank.model.weights_changed();
    const parallel::LossSum losses = rank.step({prompt_, targets_, {{0, T, 0, 0}}});
    EXPECT_LT(relative(losses.sum / double(losses.count), expected_["loss"]), tolerance());
    const Whole gradients = whole_gradients(rank.model);
    const auto sums = squares_by_name(loaded_.source.spec, gradients);
    const bool exact = compute == DType::kF64 && expected_.contains("grad_norm_float64");
    const nlohmann::json& wanted = expected_[exact ? "grad_norm_float64" : "grad_norm"];
    for (const auto& [name, sum] : sums)
      EXPECT_LT(relative(std::sqrt(sum), wanted.at(name)),
                exact ? kTolerance : gradient_tolerance())
          << name;
    EXPECT_EQ(sums.size(), wanted.size());
  }
}

// The continuation begins with its prompt; how much of it is prompt is where it leaves `ids`.
TEST_P(HfGolden, GreedyContinuation) {
  const auto wanted = expected_["greedy"].get<std::vector<int32_t>>();
  const auto split = std::mismatch(wanted.begin(), wanted.end(), prompt_.begin()).first;
  const auto given = size_t(split - wanted.begin());
  ASSERT_EQ(given, 6u);
  const auto T = int64_t(wanted.size());
  for (const int64_t chunk : {int64_t{1}, int64_t{4}, T}) {
    Runtime runtime(*loaded_.files, loaded_.source, DType::kF32,
                    {.max_positions = T, .max_call = T}, 2);
    Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, T, chunk);
    const GenerateSpec spec{.max_tokens = T - int64_t(given), .sampling = {}, .stop_ids = {1}};
    const auto made = generate(decoder, std::span(wanted).first(given), spec, [](int32_t) {});
    EXPECT_EQ(made, std::vector(wanted.begin() + int64_t(given), wanted.end()))
        << "chunks of " << chunk;
  }
}

std::string name_of(const testing::TestParamInfo<GoldenCase>& info) {
  const char* forms[] = {"AsSaved", "AsLegacyExport", "AsShardedExport", "AsCheckpoint"};
  return std::string(info.param.directory + 3) + forms[int(info.param.form)];
}

INSTANTIATE_TEST_SUITE_P(
    All, HfGolden,
    testing::Values(
        GoldenCase{"hf_small", Form::kSaved}, GoldenCase{"hf_small", Form::kLegacy},
        GoldenCase{"hf_small", Form::kCheckpoint}, GoldenCase{"hf_llama", Form::kSaved},
        GoldenCase{"hf_llama", Form::kSharded}, GoldenCase{"hf_llama", Form::kCheckpoint},
        GoldenCase{"hf_qwen3", Form::kSaved}, GoldenCase{"hf_qwen3", Form::kSharded},
        GoldenCase{"hf_qwen3", Form::kCheckpoint}, GoldenCase{"hf_mixtral", Form::kSaved},
        GoldenCase{"hf_mixtral", Form::kSharded}, GoldenCase{"hf_mixtral", Form::kCheckpoint},
        GoldenCase{"hf_qwen3_moe", Form::kSaved}, GoldenCase{"hf_qwen3_moe", Form::kSharded},
        GoldenCase{"hf_qwen3_moe", Form::kCheckpoint}, GoldenCase{"hf_minimax", Form::kSaved},
        GoldenCase{"hf_minimax", Form::kSharded}, GoldenCase{"hf_minimax", Form::kCheckpoint},
        GoldenCase{"hf_qwen3_next", Form::kSaved}, GoldenCase{"hf_qwen3_next", Form::kSharded},
        GoldenCase{"hf_qwen3_next", Form::kCheckpoint}),
    name_of);

}  // namespace
}  // namespace ashlar::eval
