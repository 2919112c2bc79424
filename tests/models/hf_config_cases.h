// Models as a config.json of Hugging Face describes them, or the reasons for which it is refused.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ashlar/models/hf/config.h"
#include "tests/support/errors.h"

namespace ashlar::models {

inline const LayerType kMoe{AttentionSpec::kKind, MoeSpec::kKind};

inline ModelKeys read(const nlohmann::json& config) {
  return parse_hf_config(config.dump(), "config.json").model;
}

// The message; "" if it is accepted.
inline std::string refusal(const nlohmann::json& config) {
  return testing_support::error_of(ErrorKind::kData, [&] { read(config); });
}

}  // namespace ashlar::models
