// Strict parsing of untrusted JSON on top of nlohmann-json (whose full header belongs in .cpp
// files).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;  // members stay in their order

// Depth is at most 32; duplicate keys and trailing bytes are errors; text must be UTF-8.  At most
// max_values values are read, each of which takes some 100 bytes of memory.
// `what` names the source for messages: "FILE: not valid JSON at byte 17: ...".
inline constexpr int64_t kMaxJsonValues = int64_t(1) << 24;
Json parse_json(std::string_view text, const std::string& what, ErrorKind kind,
                int64_t max_values = kMaxJsonValues);

// nullopt unless the value is an integer that fits an int64.
std::optional<int64_t> integer_of(const Json& value);
// A short form of a value for messages: one line of ASCII, at most 60 bytes.
std::string shown(const Json& value);

// The value in one line.  Text that is not UTF-8, such as a file name, is written with U+FFFD.
std::string one_line(const nlohmann::ordered_json& json);

}  // namespace ashlar
