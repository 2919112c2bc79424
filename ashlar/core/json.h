// Strict parsing of untrusted JSON on top of nlohmann-json (whose full header belongs into .cpp
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

// Depth at most 32, duplicate keys and trailing bytes are errors, text must be UTF-8.  Values, of
// which each takes some 100 bytes of memory, are at most max_values.
// `what` names the source for messages: "FILE: not valid JSON at byte 17: ...".
inline constexpr int64_t kMaxJsonValues = int64_t(1) << 24;
Json parse_json(std::string_view text, const std::string& what, ErrorKind kind,
                int64_t max_values = kMaxJsonValues);

// nullopt for anything but an integer that an int64 holds.
std::optional<int64_t> integer_of(const Json& value);
// A short form of a value for messages: one line of ASCII, at most 60 bytes.
std::string shown(const Json& value);

// In one line.  Text that is not UTF-8, as in the names of files, is shown with U+FFFD.
std::string one_line(const nlohmann::ordered_json& json);

}  // namespace ashlar
