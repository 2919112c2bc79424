// TOML as JSON, whose members Fields checks.
#pragma once

#include <string>
#include <string_view>

#include "ashlar/core/json.h"

namespace ashlar::machine {

// what: what the text describes, for the message.  kConfig with line and column if it is no TOML or
// far too long.
Json json_of_toml(const std::string& text, const std::string& source, std::string_view what);

}  // namespace ashlar::machine
