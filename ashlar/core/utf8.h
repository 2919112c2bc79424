// UTF-8 of foreign text: finds invalid sequences, replaces them, and holds back an unfinished
// character.
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

}  // namespace ashlar
