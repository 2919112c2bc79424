// UTF-8.  Of foreign text: finds invalid sequences, replaces them, and holds back an unfinished
// character.  Of valid text: reads, writes and counts characters, which are code points.
//
// Source  Unicode 15, chapter 3: well-formed byte sequences (table 3-7) and replacement of maximal
//         subparts.  Overlong forms, surrogates and values above U+10FFFF are invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar {

struct Utf8Step {
  enum class Kind { kValid, kInvalid, kIncomplete };  // kIncomplete: the text ends inside it
  Kind kind;
  size_t length;  // bytes of the character, or of the longest prefix that could have been one; >= 1
};
Utf8Step utf8_step(std::string_view text, size_t at);  // at < text.size()

struct Utf8Report {
  int64_t num_invalid = 0;     // invalid sequences, each of 1 to 3 bytes
  int64_t first_invalid = -1;  // byte offset; -1: none
};
Utf8Report check_utf8(std::string_view text);

// Replaces every invalid sequence, also an unfinished one at the end, by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Length of `text` without an unfinished character at its end.
size_t complete_utf8(std::string_view text);

// Whether a byte of valid text is one of a character after its first.
inline bool continues_character(char byte) {
  return (byte & 0xC0) == 0x80;
}

struct CodePoint {
  uint32_t value;
  size_t length;  // bytes
};

// The character that begins at `at`; the text must be valid.
inline CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(text[at + i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}
// The character that ends before `end` > 0.
CodePoint code_point_before(std::string_view text, size_t end);
void append_code_point(std::string& text, uint32_t value);
int64_t num_characters(std::string_view text);

}  // namespace ashlar
