// The extra files of a step that describe its model, and the one that says what config.json cannot.
#pragma once

#include <string>
#include <vector>

#include "ashlar/spec/model_spec.h"

namespace ashlar::checkpoint {

inline constexpr const char* kConfigFile = "config.json";  // native Hugging Face form
inline constexpr const char* kModelOptionsFile =
    "model.json";  // skip_output, head_fp32, qk_norm_eps
inline constexpr const char* kTokenizerFile = "tokenizer.model";

std::string model_options_json(const ModelSpec& spec);
// kCorrupt "WHAT: key is VALUE; expected ..." for anything but what model_options_json writes.
void read_model_options(const std::string& json, const std::string& what, ModelSpec& spec);
// Those of the three that are not what readers of a config.json assume, as recipes write them:
// "moe.skip_output=identity".
std::vector<std::string> unstated_options(const ModelSpec& spec);

}  // namespace ashlar::checkpoint
