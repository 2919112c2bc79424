// The members of tokenizer_config.json that Ashlar follows or need not follow, and why.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::data {

// "add_eos_token true": members that ask for something Ashlar does not do with texts, and unknown
// ones.
std::vector<std::string> unfollowed_members(const Json& tokenizer_config);

}  // namespace ashlar::data
