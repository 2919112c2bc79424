// What a file that was given as text is, if it is something else.
#pragma once

#include <string>
#include <string_view>

namespace ashlar::data {

inline constexpr size_t kHeadBytes = 4096;  // of a file, unpacked, that tell what it is

// "" for text and JSON lines; else "a PNG image; expected UTF-8 text or JSONL: what to do", by the
// name (tables, JSON documents) and the first bytes: marks of packed, binary and table formats,
// byte order marks and zeros of UTF-16 and UTF-32, the beginning of a JSON array.
std::string not_text(std::string_view path, std::string_view head);

// Whether the name says JSON lines: .jsonl or .ndjson, and .gz or .dz behind it.
bool is_json_lines(std::string_view path);

}  // namespace ashlar::data
