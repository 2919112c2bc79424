// Strict parsing of untrusted JSON on top of nlohmann-json (whose full header belongs into .cpp
// files).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {

using Json = nlohmann::json;

// Depth at most 32, duplicate keys and trailing bytes are errors, text must be UTF-8.
// `what` names the source for messages: "FILE: not valid JSON at byte 17: ...".
Json parse_json(std::string_view text, const std::string& what, ErrorKind kind);

// In one line.  Text that is not UTF-8, as in the names of files, is shown with U+FFFD.
std::string one_line(const nlohmann::ordered_json& json);

}  // namespace ashlar
