// A JSON object in a line of text, read for one of its members alone.
//
// Source  RFC 8259, and what Python's json module writes and reads besides: NaN, Infinity and
//         -Infinity.
// Takes   numbers of any size, since none is converted; any nesting, without recursion; a key that
//         stands twice, of which the last value counts, as in Python.  An escaped surrogate without
//         its other half becomes U+FFFD and is counted.
// Cost    one pass; memory for the member and a byte for each open bracket.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::data {

enum class JsonKind : uint8_t { kAbsent, kString, kNumber, kBoolean, kNull, kArray, kObject };
std::string_view name_of(JsonKind kind);  // "a string"

struct JsonRow {
  JsonKind kind = JsonKind::kAbsent;    // of the value in the line; kAbsent: it is not valid JSON
  JsonKind member = JsonKind::kAbsent;  // of the member, where the value is an object
  std::string text;                     // of the member, where it is a string
  int64_t num_replaced = 0;             // surrogates in it that became U+FFFD
  // Where kind is kAbsent: bytes before the first that is wrong, and what is expected there.
  size_t error_at = 0;
  std::string_view expected = {};
  bool cut = false;  // nothing is wrong but that the line ends too early
};

// `line` is UTF-8: any other byte above 0x7F would pass as part of a string.  Replaces `row`, whose
// memory is used again.
void read_json_row(std::string_view line, std::string_view member, JsonRow& row);

// The keys of a valid row, at most so many, in their order.
std::vector<std::string> keys_of_row(std::string_view line, size_t most);

}  // namespace ashlar::data
