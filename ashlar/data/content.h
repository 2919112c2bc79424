// What a file that was given as text is: text, JSON lines, or something else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar::data {

enum class InputFormat : uint8_t { kDetect, kText, kJsonLines };  // what the user says of it

inline constexpr std::string_view kTextMember = "text";  // of a JSON line
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Content {
  bool json_lines = false;
  bool by_content = false;  // JSON lines whose name does not say so
  // "" for text and JSON lines; else "a PNG image; expected UTF-8 text or JSONL: what to do".
  std::string refusal = {};
};

// By the first bytes, unpacked and behind a byte order mark, and by the name.
//
//   no text ever   marks of packed, binary and table formats; zeros of UTF-16 and UTF-32
//   JSON lines     the name says so (is_json_lines), or the first lines that are not blank are
//                  objects with a member "text", whatever the name
//   refused        lines of which some are such objects and some are not; objects without "text"; a
//                  JSON array, or an object over several lines; .json, .csv and .tsv by name
//   text           any other
//
// `whole`: the file ends with `head`; else its last line may go on.  kText and kJsonLines overrule
// all but what is no text ever, and an array for kJsonLines.
inline constexpr size_t kHeadBytes = 256 << 10;  // what `head` should hold
inline constexpr size_t kMarkBytes = 4096;       // of it, where marks and zeros are looked for
Content content_of(std::string_view path, std::string_view head, bool whole, InputFormat format);

// Whether the name says JSON lines: .jsonl, .ndjson or .jsonlines in any case, with a number or a
// part (.jsonl.1, .jsonl.part-00000) and then .gz or .dz behind it.
bool is_json_lines(std::string_view path);

// " (there are "id", "title")": the keys of a valid JSON object, the first of many.
std::string members_of(std::string_view row);

}  // namespace ashlar::data
