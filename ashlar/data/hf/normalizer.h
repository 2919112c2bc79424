// Normalizers of tokenizer.json: NFC, NFD, NFKC, NFKD, Nmt, Lowercase, Strip, StripAccents,
// Prepend, Replace, Precompiled, BertNormalizer, ByteLevel, and a Sequence of them.
//
// Source  tokenizers 0.23.
// Errors  kData, "PLACE: ...", for any other type or member.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/core/json.h"

namespace ashlar::data {

class TextNormalizer {
 public:
  virtual ~TextNormalizer() = default;
  // text: not empty, valid UTF-8, and stays so, but may become empty.  origin: the number of bytes
  // at its beginning that stand for the first character of the user's text; 0: that is dropped.
  virtual void apply(std::string& text, size_t& origin) const = 0;
  // The text that a space between two letters of ASCII becomes, if the text before it and that
  // behind it are changed independently; "": they are not.
  virtual std::string_view word_border() const { return ""; }
};

// Null for null.
std::unique_ptr<TextNormalizer> parse_normalizer(const Json& json, const std::string& place);
// {"type": "Precompiled", "precompiled_charsmap": BASE64} of sentencepiece.
std::unique_ptr<TextNormalizer> parse_precompiled(const Json& json, const std::string& place);

}  // namespace ashlar::data
