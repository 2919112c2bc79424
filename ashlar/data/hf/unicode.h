// Characters as the tokenizers library 0.23 sees them.  Its parts follow different versions of
// Unicode: regular expressions version 16, Rust's own functions 17, normalization 9, and the
// categories of BERT's steps 8.
//
// All text is valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/function_ref.h"

namespace ashlar::data {

enum CharClass : uint8_t {
  kSpaceChar = 1,         // White_Space
  kNumberChar = 2,        // numbers of Rust's char
  kWordChar = 4,          // \w of Rust's regular expressions
  kPunctuationChar = 8,   // of the steps Punctuation and BertPreTokenizer
  kBertAccentChar = 16,   // dropped by strip_accents of BertNormalizer
  kMarkChar = 32,         // dropped by StripAccents
  kBertControlChar = 64,  // dropped by clean_text of BertNormalizer
  kReplacedChar = 128     // has another category in PCRE2's version of Unicode: stand_in()
};
bool has_class(uint32_t value, uint8_t classes);  // any of them

// A character of as many bytes which has, in every version of Unicode since 14, the category that
// regular expressions of the library see in `value`.
uint32_t stand_in(uint32_t value);

std::string lowercase(std::string_view text);  // every character by itself

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(std::string_view text, NormalForm form);

// Calls `found` for every extended grapheme cluster in order; marks are those of version 17.
void for_each_grapheme(std::string_view text, function_ref<void(std::string_view)> found);

}  // namespace ashlar::data
