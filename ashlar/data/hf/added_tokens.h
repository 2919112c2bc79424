// Tokens that a tokenizer.json adds to its model, such as "<|im_start|>": they are found in a text
// before the model sees it.
//
// Tokens with "normalized": false are found in the text as it is, the others, in their own
// normalized form, in what the normalizer makes of the rest.  Of several that begin at one place
// the longest counts.
//
// Source  tokenizers 0.23.
// Errors  kData, "PLACE: ...": other members than the library writes, or an id other than the one
//         that the library would give.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/core/json.h"
#include "ashlar/data/hf/byte_trie.h"
#include "ashlar/data/hf/normalizer.h"
#include "ashlar/data/hf/vocabulary.h"

namespace ashlar::data {

class AddedTokens {
 public:
  struct Token {
    std::string content;
    std::string normalized;  // as decoding shows it
    int32_t id = -1;
    bool single_word = false, strips_left = false, strips_right = false, special = false;
  };
  // normalizer: null if there is none.
  AddedTokens(const Json& tokens, const Vocabulary& vocabulary, const TextNormalizer* normalizer,
              const std::string& place);

  enum class Stage : uint8_t { kRaw, kNormalized };
  // Cuts a text into parts that are tokens, with their id, and others, never empty, with -1.
  void split(std::string_view text, Stage stage,
             function_ref<void(std::string_view part, int32_t id, bool begins)> found) const;

  const Token* find(int32_t id) const;  // null: none
  const Token* find(const std::string& content) const;
  int32_t end_id() const { return end_id_; }  // one above the largest; 0: none
  bool is_special(const std::string& content) const;
  // Whether a token may touch a space between two letters of ASCII: it has or takes spaces, or
  // begins or ends with such a letter.
  bool touch_words() const { return touch_words_; }

 private:
  struct Finder {
    std::unique_ptr<ByteTrie> trie;  // null: no tokens
    std::array<bool, 256> begins{};
  };
  void add(const Json& json, const Vocabulary& vocabulary, const TextNormalizer* normalizer,
           const std::string& place, std::array<std::vector<size_t>, 2>& stages);
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<Token> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  std::array<Finder, 2> finders_;  // by stage
  int32_t end_id_ = 0;
  bool touch_words_ = false;
};

}  // namespace ashlar::data
