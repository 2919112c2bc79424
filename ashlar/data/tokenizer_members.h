// The members of tokenizer_config.json that Ashlar follows or need not follow, and why.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::data {

// "add_eos_token true": those that say something of texts which Ashlar does not do, and those that
// it does not know.
std::vector<std::string> unfollowed_members(const Json& tokenizer_config);

}  // namespace ashlar::data
