// Every malformed directory under tests/fixtures/bad/hf gives one line of kind kData that names the
// place, the value and what would be right.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ashlar/models/hf/model.h"
#include "tests/models/hf_test_util.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::models {
namespace {

// Directory -> what its message must say, the file first ("DIR" is the directory).
const std::map<std::string, std::vector<std::string>> kCases = {
    {"config-missing", {"DIR/config.json: not found", "expected a Hugging Face model"}},
    {"config-invalid-json", {"DIR/config.json: not valid JSON at byte"}},
    {"config-duplicate-key", {"DIR/config.json: ", "vocab_size"}},
    {"config-no-sizes", {"DIR/config.json: moe_intermediate_size", "expected the config.json"}},
    {"config-missing-size", {"DIR/config.json: router_hidden_size is missing", "integer from 1"}},
    {"config-model-type", {"DIR/config.json: model_type is \"gpt2\"", "expected one of \"zaya\""}},
    {"config-top-k", {"DIR/config.json: num_experts_per_tok is 2", "expected 1"}},
    {"config-clamp-temp", {"DIR/config.json: clamp_temp is true", "expected false"}},
    {"config-untied", {"DIR/config.json: tie_word_embeddings is false", "expected true"}},
    {"config-attention-bias", {"DIR/config.json: attention_bias is true", "expected false"}},
    {"config-three-taps", {"DIR/config.json: cca_time0 is 3", "expected 2"}},
    {"config-heads", {"DIR/config.json: num_attention_heads is 3", "num_key_value_heads is 2"}},
    {"config-window-without-blocks", {"DIR/config.json: sliding_window is 16", "expected null"}},
    {"config-sliding-without-window", {"DIR/config.json: sliding_window is missing", "integer"}},
    {"config-layer-types", {"DIR/config.json: layer_types is [", "num_hidden_layers = 1"}},
    {"config-negative-size", {"DIR/config.json: hidden_size is -4", "integer from 1"}},
    {"config-size-as-text", {"DIR/config.json: hidden_size is \"4\"", "integer from 1"}},
    {"config-scaled-rope",
     {"DIR/config.json: rope_parameters.hybrid: rope_type is \"yarn\"", "\"default\""}},
    {"config-quantized", {"DIR/config.json: quantization_config is {", "take the BF16"}},
    {"config-alias-differs",
     {"DIR/config.json: rope_theta is 10000.0", "rotary_base is 500.0", "keep one"}},
    {"config-odd-sub-layers", {"DIR/config.json: zaya_layers states 3 sub-layers", "even"}},
    {"config-list-lengths",
     {"DIR/config.json: cca_num_q_heads has 4 entries", "zaya_layers has 2"}},
    {"config-uneven-experts", {"DIR/config.json: zaya_layers is [", "same number throughout"}},
    {"no-weights", {"DIR: neither model.safetensors nor model.safetensors.index.json", "expected"}},
    {"pickle-only", {"DIR: neither model.safetensors nor", "convert .bin files"}},
    {"tensor-missing",
     {"DIR: tensors are missing: model.layers.0.mlp.gate.down_proj.bias;", "expected the 35"}},
    {"tensor-extra", {"DIR: unexpected tensors: model.layers.0.mlp.shared.weight;", "remove them"}},
    {"router-state-in-block-0",
     {"DIR: unexpected tensors: model.layers.0.mlp.gate.router_states_scale;", "expected only"}},
    {"tensor-shape", {"DIR: model.norm.weight in DIR/model.safetensors has shape [2, 2]", "[4]"}},
    {"tensor-dtype", {"DIR: model.norm.weight in DIR/model.safetensors has dtype I64", "BF16"}},
    {"heads-disagree",
     {"DIR/config.json: num_key_value_heads is 1", "qk_norm.temp has shape [2]", "expected 1"}},
    {"blocks-disagree",
     {"DIR/config.json: num_hidden_layers states 1 blocks", "named for 2 blocks", "expected 1"}},
    {"head-differs",
     {"DIR/model.safetensors: lm_head.weight is 1.5 at element 0", "embed_tokens.weight is 0"}},
    {"header-empty", {"DIR/model.safetensors: ", "0 bytes", "at least 8"}},
    {"header-too-long", {"DIR/model.safetensors: ", "1099511627776"}},
    {"header-past-end", {"DIR/model.safetensors: ", "needs 4104 bytes but the file has 16"}},
    {"header-not-json", {"DIR/model.safetensors: ", "JSON"}},
    {"header-fp8", {"DIR/model.safetensors: ", "model.norm.weight", "F8_E4M3"}},
    {"data-truncated", {"DIR/model.safetensors: ", "1624 bytes but the file has 1616"}},
    {"data-trailing", {"DIR/model.safetensors: ", "1624 bytes but the file has 1632"}},
    {"offsets-overlap", {"DIR/model.safetensors: ", "model.norm.weight"}},
    {"shape-overflow", {"DIR/model.safetensors: ", "model.norm.weight"}},
    {"index-missing-shard",
     {"DIR/model.safetensors.index.json: weight_map names model-00002-of-00002.safetensors",
      "fetch"}},
    {"index-path",
     {"DIR/model.safetensors.index.json: weight_map[\"model.norm.weight\"] is \"../model",
      "beside"}},
    {"index-names-absent-tensor",
     {"DIR/model.safetensors.index.json: ", "model.extra.weight (model-00002-of-00002", "fetch"}},
    {"index-lacks-tensor", {"DIR/model.safetensors.index.json: ", "model.norm.weight", "fetch"}},
    {"index-and-single", {"DIR: both model.safetensors and", "remove the stale one"}},
    {"index-empty", {"DIR/model.safetensors.index.json: weight_map is missing or empty", "object"}},
    {"tensor-twice",
     {"DIR/model-00002-of-00002.safetensors: tensor model.norm.weight is in DIR/model-00001",
      "once"}},
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string message_of_opening(const std::string& directory) {
  const auto files = posix_files();
  return testing_support::message_of(ErrorKind::kData, [&] { HfModel::open(*files, directory); });
}

TEST(HfBad, EveryDirectorySaysWhatIsWrong) {
  for (const auto& [name, words] : kCases) {
    SCOPED_TRACE(name);
    const std::string directory = test_data("bad/hf/" + name);
    const std::string message = replaced(message_of_opening(directory), directory, "DIR");
    EXPECT_TRUE(message.starts_with(words[0])) << message;
    for (const std::string& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
  }
}

TEST(HfBad, EveryDirectoryHasACase) {
  for (const auto& entry : std::filesystem::directory_iterator(test_data("bad/hf")))
    if (entry.is_directory()) {
      EXPECT_TRUE(kCases.count(entry.path().filename().string())) << entry.path();
    }
  for (const auto& [name, words] : kCases)
    EXPECT_TRUE(std::filesystem::is_directory(test_data("bad/hf/" + name))) << name;
}

TEST(HfBad, NoDirectory) {
  EXPECT_NE(message_of_opening(test_data("bad/hf/never")).find("never: no such directory"),
            std::string::npos);
}

TEST(HfBad, LinksMustLeadToFiles) {
  const testing_support::TemporaryDirectory root;
  std::filesystem::create_symlink(test_data("hf_small/config.json"), root / "config.json");
  std::filesystem::create_symlink("gone", root / "model.safetensors");
  EXPECT_NE(message_of_opening(root / "").find("neither model.safetensors nor "), std::string::npos)
      << message_of_opening(root / "");
  std::filesystem::remove(root / "model.safetensors");
  std::filesystem::create_symlink("/dev/null", root / "model.safetensors");
  EXPECT_NE(message_of_opening(root / "").find("model.safetensors: expected a regular file"),
            std::string::npos)
      << message_of_opening(root / "");
}

}  // namespace
}  // namespace ashlar::models
