// Patterns of tokenizer.json: {"String": "ab"} and {"Regex": "\\s+"}.
//
// Regular expressions are those of Oniguruma 6.9.10, which the tokenizers library uses, as far as
// PCRE2 can follow them: groups without names, lookaround, alternatives, quantifiers, classes and
// escapes.  Anything else is kData, by name.  Characters have the categories of Unicode 16.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::data {

// The most that the steps of a tokenizer.json may make of a text.
inline constexpr size_t kMostTextBytes = size_t(1) << 27;
void require_text_size(size_t bytes);  // kData for more

// A part of a text that matches, or one between two that do.
struct TextSegment {
  size_t begin, end;
  bool match;
};

class TextPattern {
 public:
  // `place` names the pattern in messages.
  TextPattern(const Json& pattern, const std::string& place);
  static TextPattern regex(const std::string& expression, const std::string& place);
  ~TextPattern();
  TextPattern(TextPattern&&) noexcept;

  // Cuts a text, not empty, into matches and what is between them.  kData for a text on which the
  // expression takes too many steps.
  std::vector<TextSegment> segments(std::string_view text) const;
  // first: becomes the first segment where that is a match.  kData for more than kMostTextBytes.
  std::string replace(std::string_view text, std::string_view replacement,
                      TextSegment* first = nullptr) const;

  const std::string& literal() const { return literal_; }  // "": the pattern is an expression
  std::string_view expression() const;                     // "": the pattern is literal

 private:
  struct Expression;
  TextPattern() = default;
  std::string replace_literal(std::string_view text, std::string_view replacement) const;
  std::string literal_;                     // not empty, or
  std::unique_ptr<Expression> expression_;  // not null
};

}  // namespace ashlar::data
