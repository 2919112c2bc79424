// Tells what an input file is: text, JSON lines, or something else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar::data {

enum class InputFormat : uint8_t { kDetect, kText, kJsonLines };  // as the user declares it

inline constexpr std::string_view kTextMember = "text";  // the member of a JSON line
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Content {
  bool json_lines = false;
  bool by_content = false;  // JSON lines by content alone, against the name
  // "" for text and JSON lines; else "a PNG image; expected UTF-8 text or JSONL: what to do".
  std::string refusal = {};
};

// Judges the first bytes, unpacked and after a byte order mark, and the name.
//
//   never text     marks of packed, binary and table formats; zeros of UTF-16 and UTF-32
//   JSON lines     the name says so (is_json_lines), or the first lines that are not blank are
//                  objects with a member "text", whatever the name
//   refused        such objects mixed with other lines; objects without "text"; a
//                  JSON array, or an object over several lines; .json, .csv and .tsv by name
//   text           any other
//
// `whole`: the file ends with `head`; otherwise its last line may continue.  kText and kJsonLines
// overrule all of this but "never text", and kJsonLines accepts no array.
inline constexpr size_t kHeadBytes = 256 << 10;  // the length that `head` should have
inline constexpr size_t kMarkBytes = 4096;       // the part of it searched for marks and zeros
Content content_of(std::string_view path, std::string_view head, bool whole, InputFormat format);

// Whether the name is that of JSON lines: .jsonl, .ndjson or .jsonlines in any case, optionally
// followed by a number or a part (.jsonl.1, .jsonl.part-00000) and by .gz or .dz.
bool is_json_lines(std::string_view path);

// " (there are "id", "title")": the first keys of a valid JSON object.
std::string members_of(std::string_view row);

}  // namespace ashlar::data
