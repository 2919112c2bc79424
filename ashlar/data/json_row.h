// Reads one member of a JSON object in a line of text.
//
// Source   RFC 8259, and NaN, Infinity and -Infinity, which Python's json module writes and reads.
// Accepts  numbers of any size, since none is converted; any nesting, without recursion; repeated
//          keys, of which the last counts, as in Python.  Half of an escaped surrogate pair becomes
//          U+FFFD and is counted.
// Cost     one pass; memory for the member and a byte for each open bracket.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::data {

enum class JsonKind : uint8_t { kAbsent, kString, kNumber, kBoolean, kNull, kArray, kObject };
std::string_view name_of(JsonKind kind);  // "a string"

struct JsonRow {
  JsonKind kind = JsonKind::kAbsent;    // of the line's value; kAbsent: not valid JSON
  JsonKind member = JsonKind::kAbsent;  // of the member, where the value is an object
  std::string text;                     // of the member, where it is a string
  int64_t num_replaced = 0;             // surrogates in it that became U+FFFD
  // Where kind is kAbsent: the number of valid bytes, and what is expected after them.
  size_t error_at = 0;
  std::string_view expected = {};
  bool cut = false;  // the only fault is that the line ends too early
};

// `line` must be UTF-8: other bytes above 0x7F would pass as part of a string.  Replaces `row` and
// reuses its memory.
void read_json_row(std::string_view line, std::string_view member, JsonRow& row);

// The first keys of a valid row, at most `most`, in their order.
std::vector<std::string> keys_of_row(std::string_view line, size_t most);

}  // namespace ashlar::data
