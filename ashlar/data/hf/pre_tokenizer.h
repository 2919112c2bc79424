// Pre-tokenizers of tokenizer.json: ByteLevel, Split, Metaspace, Digits, Whitespace,
// WhitespaceSplit, Punctuation, BertPreTokenizer, CharDelimiterSplit, and a Sequence of them.
//
// Source  tokenizers 0.23.
// Errors  kData, "PLACE: ...", for any other type or member.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ashlar/core/function_ref.h"
#include "ashlar/core/json.h"

namespace ashlar::data {

// The expression of Qwen's models: words with the space before them, single digits, runs of signs,
// line ends and spaces.
inline constexpr std::string_view kQwenWords =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

class PreTokenizer {
 public:
  // A part that the model encodes by itself, never empty; whether it begins the whole text.
  using Part = function_ref<void(std::string_view part, bool begins)>;
  virtual ~PreTokenizer() = default;
  virtual void split(std::string_view text, bool begins, Part found) const = 0;
  // Whether a part always ends before a space between two letters of ASCII, and those on its two
  // sides do not depend on each other.
  virtual bool splits_words() const { return false; }
};

// Null for null.
std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const Json& json, const std::string& place);

// How the step Metaspace and its decoder write spaces.
struct Metaspace {
  enum class Prepend : uint8_t { kFirst, kNever, kAlways };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool splits = true;
};
Metaspace parse_metaspace(const Json& json, const std::string& place);

}  // namespace ashlar::data
