// A Llama that says follow[i] after token i, whatever came before: its blocks do nothing, its
// embedding is the identity, and its head has a 1 where one token follows another.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ashlar/models/hf/model.h"
#include "ashlar/nn/weights.h"
#include "tests/integration/support.h"
#include "tests/support/write_hf_model.h"

namespace ashlar::integration {

using Follow = std::map<int64_t, int64_t>;

// Writes DIRECTORY of such a model with the members of `config` changed or, if null, left out.
inline void write_chain(const std::filesystem::path& directory, int64_t vocab_size,
                        const Follow& follow, const nlohmann::json& config = {},
                        DType dtype = DType::kF32) {
  ModelKeys keys;
  keys.vocab_size = vocab_size;
  keys.hidden_size = (vocab_size + 7) / 8 * 8;
  keys.num_hidden_layers = 1;
  keys.num_attention_heads = keys.num_key_value_heads = 4;
  keys.head_dim = 8;
  keys.intermediate_size = 8;
  keys.partial_rotary_factor = 1.0;
  keys.residual = Residual::kPlain;
  keys.layer_types = {LayerType::kFullAttention};
  keys.tie_word_embeddings = false;
  keys.max_position_embeddings = 256;
  keys.bos_token_id = 1, keys.eos_token_ids = {2}, keys.pad_token_id = 0;
  const ModelSpec spec = model_of(keys);
  std::deque<std::vector<float>> memory;
  std::vector<Piece> pieces;
  for (const LogicalTensor& logical : nn::logical_tensors(spec, DType::kF32)) {
    const bool norm = logical.name.find("norm") != std::string::npos;
    auto& values = memory.emplace_back(size_t(logical.global_shape.numel()), norm ? 1.f : 0.f);
    if (logical.name == "model.embed_tokens.weight")
      for (int64_t id = 0; id < vocab_size; ++id) values[size_t(id * keys.hidden_size + id)] = 1;
    if (logical.name == "lm_head.weight")
      for (const auto& [from, to] : follow) values[size_t(to * keys.hidden_size + from)] = 1;
    pieces.push_back({logical, Box::whole(logical.global_shape),
                      Tensor{reinterpret_cast<std::byte*>(values.data()), DType::kF32, Device::kCpu,
                             logical.global_shape}});
  }
  const auto files = posix_files();
  models::HfWriteOptions options;
  options.dtype = dtype;
  models::write_hf_model(*files, directory.string(), spec, pieces, options);
  auto written = nlohmann::json::parse(read_file(directory / "config.json"));
  for (const auto& [key, value] : config.items())
    value.is_null() ? void(written.erase(key)) : void(written[key] = value);
  write_file(directory / "config.json", written.dump(2));
  std::filesystem::remove(directory / "generation_config.json");
}

}  // namespace ashlar::integration
