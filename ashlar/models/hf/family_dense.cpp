// The config.json of dense models: LlamaForCausalLM; MistralForCausalLM, whose blocks may all have
// a window; Qwen2ForCausalLM, whose queries, keys and values have biases; Qwen3ForCausalLM, which
// has QK norm.  In both of Qwen's any block may have a window.
#include <algorithm>

#include "ashlar/models/hf/rope_config.h"

namespace ashlar::models {
namespace {

constexpr HfDefaults kLlamaDefaults{.positions = 2048, .states_bias = true};
constexpr HfDefaults kMistralDefaults{.positions = 131072, .key_heads = 8, .null_key_heads = false};
constexpr HfDefaults kQwen2Defaults{
    .key_heads = 32, .null_head_dim = false, .bias = AttentionBias::kQkv};
constexpr HfDefaults kQwen3Defaults{
    .key_heads = 32, .head_dim = 128, .null_head_dim = false, .states_bias = true};
constexpr HfArithmetic kLlama{.states_bias = true};
constexpr HfArithmetic kMistral{};
constexpr HfArithmetic kQwen2{.bias = AttentionBias::kQkv};
constexpr HfArithmetic kQwen3{.norm = QkNorm::kRms, .states_bias = true};

// --- reading ---

HfConfig read_dense(const HfFields& fields, const HfDefaults& defaults) {
  HfConfig config = read_attention_config(fields, defaults);
  SizeReader size{fields, config.keys};
  const MlpSpec mlp{size.scalar("intermediate_size", "intermediate_size", kMaxSize)};
  change_each<MlpSpec>(config.model, [&](MlpSpec& each) { each = mlp; });
  config.sizes.push_back(
      {"model.layers.0.mlp.gate_proj.weight", 0, config.key_of("intermediate_size"), mlp.width});
  return config;
}

HfConfig read_llama(const HfFields& fields) {
  if (fields.boolean_or("mlp_bias", false))
    fields.fail("mlp_bias", "false: feed-forwards without bias are supported");
  require_layer_types(fields, "full_attention");
  return read_dense(fields, kLlamaDefaults);
}

// A file that does not say has a window, as in the first release; null means none.
HfConfig read_mistral(const HfFields& fields) {
  constexpr int64_t kWindow = 4096;
  HfConfig config = read_dense(fields, kMistralDefaults);
  const char* key = "sliding_window";
  const bool slides = !fields.is_null(key);
  require_layer_types(fields, slides ? "sliding_attention" : "full_attention");
  if (!slides) return config;
  const int64_t window = fields.integer_or(key, kWindow, 1, kMaxPositions);
  change_each<AttentionSpec>(config.model, [&](AttentionSpec& each) { each.window = window; });
  return config;
}

// Reads which blocks have a window, from Qwen's layer_types or, without them, max_window_layers.
void read_windows(const HfFields& fields, ModelSpec& model) {
  const int64_t L = model.num_blocks();
  const std::optional<int64_t> window = read_window(fields);
  const auto slide = [&](size_t l) { part_in<AttentionSpec>(model.blocks[l])->window = *window; };
  if (!fields.has("layer_types")) {
    const int64_t first = fields.integer_or("max_window_layers", 28, 0, kMaxLayers);
    for (int64_t l = first; window && l < L; ++l) slide(size_t(l));
    return;
  }
  const Json& list = fields.at("layer_types");
  const std::string expected = fmt::format(
      "a list of num_hidden_layers = {} names, each \"full_attention\" or \"sliding_attention\"",
      L);
  if (!list.is_array() || int64_t(list.size()) != L) fields.fail("layer_types", expected);
  for (size_t l = 0; l < list.size(); ++l) {
    if (list[l] != "full_attention" && list[l] != "sliding_attention")
      fields.fail("layer_types", expected);
    if (list[l] != "sliding_attention") continue;
    if (!window)
      fields.fail("layer_types",
                  "\"full_attention\" for every block, or use_sliding_window true and a "
                  "sliding_window beside it");
    slide(l);
  }
}

HfConfig read_qwen2(const HfFields& fields) {
  HfConfig config = read_dense(fields, kQwen2Defaults);
  read_windows(fields, config.model);
  return config;
}

HfConfig read_qwen3(const HfFields& fields) {
  HfConfig config = read_dense(fields, kQwen3Defaults);
  change_each<AttentionSpec>(config.model,
                             [](AttentionSpec& each) { each.qk_norm = QkNorm::kRms; });
  read_windows(fields, config.model);
  return config;
}

// --- writing ---

bool states_dense(const ModelSpec& model, const HfBlocks& blocks, const HfArithmetic& arithmetic) {
  return states_attention_config(model, blocks, arithmetic) && !blocks.linear && !blocks.moe;
}

// Whether sliding blocks have the base of the others.
bool has_one_base(const HfBlocks& blocks) {
  return blocks.attention.one_reach() ||
         blocks.attention.sliding->rope_theta == blocks.attention.whole->rope_theta;
}

bool states_llama(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_dense(model, blocks, kLlama) && !blocks.attention.sliding;
}

bool states_mistral(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_dense(model, blocks, kMistral) && !blocks.attention.whole;
}

bool states_qwen2(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_dense(model, blocks, kQwen2) && has_one_base(blocks);
}

bool states_qwen3(const ModelSpec& model) {
  const HfBlocks blocks(model);
  return states_dense(model, blocks, kQwen3) && has_one_base(blocks);
}

HfBlocks write_dense(const ModelSpec& model, Json& json) {
  const HfBlocks blocks(model);
  write_attention_config(model, blocks, json);
  json["intermediate_size"] = blocks.mlp->width;
  return blocks;
}

void write_llama(const ModelSpec& model, HfLayout, Json& json) {
  write_bias(write_dense(model, json), json);
  json["mlp_bias"] = false;
}

void write_mistral(const ModelSpec& model, HfLayout, Json& json) {
  write_window(write_dense(model, json), json);
}

void write_windows(const ModelSpec& model, const HfBlocks& blocks, Json& json) {
  const auto slides = [&](size_t l) { return part_in<AttentionSpec>(model.blocks[l])->window > 0; };
  const size_t L = model.blocks.size();
  json["layer_types"] = Json::array();
  for (size_t l = 0; l < L; ++l)
    json["layer_types"].push_back(slides(l) ? "sliding_attention" : "full_attention");
  json["use_sliding_window"] = blocks.attention.sliding != nullptr;
  write_window(blocks, json);
  // Read where layer_types is not: the first block from which on all have a window.
  size_t first = L;
  while (first > 0 && slides(first - 1)) --first;
  json["max_window_layers"] = first;
}

void write_qwen2(const ModelSpec& model, HfLayout, Json& json) {
  write_windows(model, write_dense(model, json), json);
}

void write_qwen3(const ModelSpec& model, HfLayout, Json& json) {
  const HfBlocks blocks = write_dense(model, json);
  write_bias(blocks, json);
  write_windows(model, blocks, json);
}

}  // namespace

const HfFamily kHfLlama{.model_type = "llama",
                        .architecture = "LlamaForCausalLM",
                        .states = states_llama,
                        .read = read_llama,
                        .write = write_llama};
const HfFamily kHfMistral{.model_type = "mistral",
                          .architecture = "MistralForCausalLM",
                          .states = states_mistral,
                          .read = read_mistral,
                          .write = write_mistral};
const HfFamily kHfQwen2{.model_type = "qwen2",
                        .architecture = "Qwen2ForCausalLM",
                        .states = states_qwen2,
                        .read = read_qwen2,
                        .write = write_qwen2};
const HfFamily kHfQwen3{.model_type = "qwen3",
                        .architecture = "Qwen3ForCausalLM",
                        .states = states_qwen3,
                        .read = read_qwen3,
                        .write = write_qwen3};

}  // namespace ashlar::models
