// Models as a config.json of Hugging Face describes them, or the reasons for which it is refused.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ashlar/models/hf/config.h"
#include "ashlar/spec/model_keys.h"
#include "tests/support/errors.h"

namespace ashlar::models {

inline const LayerType kMoe{AttentionSpec::kKind, MoeSpec::kKind};

// As a recipe spells it.
inline ModelKeys read(const nlohmann::json& config) {
  return keys_of(parse_hf_config(config.dump(), "config.json").model);
}
inline bool has_hf_config(const ModelKeys& keys) {
  return has_hf_config(model_of(keys));
}
inline std::string to_hf_config(const ModelKeys& keys, DType dtype, HfLayout layout) {
  return to_hf_config(model_of(keys), dtype, layout);
}

// The message; "" if it is accepted.
inline std::string refusal(const nlohmann::json& config) {
  return testing_support::error_of(ErrorKind::kData, [&] { read(config); });
}

}  // namespace ashlar::models
