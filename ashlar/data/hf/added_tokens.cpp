#include "ashlar/data/hf/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/fields.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/hf/unicode.h"
#include "ashlar/data/sentencepiece_model.h"

namespace ashlar::data {
namespace {

bool touches_words(std::string_view token) {
  const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  return token.find(' ') != token.npos || token.find(kPieceSpace) != token.npos ||
         (!token.empty() && (is_letter(token.front()) || is_letter(token.back())));
}

}  // namespace

AddedTokens::AddedTokens(const Json& tokens, const Vocabulary& vocabulary,
                         const TextNormalizer* normalizer, const std::string& place) {
  if (tokens.is_null()) return;
  ASHLAR_REQUIRE(tokens.is_array(), kData, "{}: found {}; expected a list", place, shown(tokens));
  std::array<std::vector<size_t>, 2> stages;
  for (const Json& token : tokens) add(token, vocabulary, normalizer, place, stages);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].empty()) continue;
    size_t bytes = 0;
    for (const size_t index : stages[stage]) bytes += tokens_[index].normalized.size();
    finders_[stage].trie = std::make_unique<ByteTrie>(bytes);
    for (const size_t index : stages[stage]) {
      const std::string& text = tokens_[index].normalized;
      if (text.empty()) continue;
      finders_[stage].trie->add(text, int32_t(index));
      finders_[stage].begins[static_cast<unsigned char>(text[0])] = true;
    }
  }
}

void AddedTokens::add(const Json& json, const Vocabulary& vocabulary,
                      const TextNormalizer* normalizer, const std::string& place,
                      std::array<std::vector<size_t>, 2>& stages) {
  const Fields fields(json, place, ErrorKind::kData);
  fields.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  Token token{.content = fields.text("content"),
              .normalized = fields.text("content"),
              .id = int32_t(fields.integer("id", 0, kMostTokens - 1)),
              .single_word = fields.boolean("single_word"),
              .strips_left = fields.boolean("lstrip"),
              .strips_right = fields.boolean("rstrip"),
              .special = fields.boolean("special")};
  if (token.content.empty()) return;
  const int32_t known = vocabulary.id_of(token.content);
  const auto size = int32_t(vocabulary.size());
  const int32_t next = end_id_ > size || size == 0 ? end_id_ : size;
  const Token* before = find(token.content);
  const int32_t expected = before ? before->id : known >= 0 ? known : next;
  if (token.id != expected)
    fields.fail("the token {} has the id {}; expected {}, which the tokenizers library gives it",
                shown(Json(token.content)), token.id, expected);
  const bool normalized = fields.boolean("normalized");
  size_t origin = 0;
  if (normalized && normalizer) normalizer->apply(token.normalized, origin);
  if (before) fields.fail("the token {} stands there twice", shown(Json(token.content)));
  end_id_ = std::max(end_id_, token.id + 1);
  touch_words_ = touch_words_ || token.strips_left || token.strips_right ||
                 touches_words(token.content) || touches_words(token.normalized);
  by_id_[token.id] = by_content_[token.content] = tokens_.size();
  stages[normalized ? 1 : 0].push_back(tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedTokens::Token* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedTokens::Token* AddedTokens::find(const std::string& content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedTokens::is_special(const std::string& content) const {
  const Token* token = find(content);
  return token && token->special;
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const bool joined_left = begin > 0 && has_class(code_point_before(text, begin).value, kWordChar);
  const bool joined_right =
      end < text.size() && has_class(code_point_at(text, end).value, kWordChar);
  return !joined_left && !joined_right;
}

void AddedTokens::split(
    std::string_view text, Stage stage,
    function_ref<void(std::string_view part, int32_t id, bool begins)> found) const {
  const Finder& finder = finders_[size_t(stage)];
  size_t done = 0;
  for (size_t at = 0; finder.trie && at < text.size();) {
    size_t length = 0;
    int32_t index = -1;
    if (finder.begins[static_cast<unsigned char>(text[at])])
      finder.trie->find(text.substr(at), [&](size_t bytes, int32_t which) {
        length = bytes;
        index = which;
      });
    if (length == 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    const Token& token = tokens_[size_t(index)];
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    while (token.strips_left && begin > done) {
      const CodePoint point = code_point_before(text, begin);
      if (!has_class(point.value, kSpaceChar)) break;
      begin -= point.length;
    }
    while (token.strips_right && end < text.size()) {
      const CodePoint point = code_point_at(text, end);
      if (!has_class(point.value, kSpaceChar)) break;
      end += point.length;
    }
    // A token before it may have taken its spaces, or stripped what looked like its beginning.
    begin = std::max(begin, done);
    if (begin > done) found(text.substr(done, begin - done), -1, done == 0);
    found(text.substr(begin, std::max(end, begin) - begin), token.id, begin == 0);
    done = std::max(end, done);
  }
  if (done < text.size()) found(text.substr(done), -1, done == 0);
}

}  // namespace ashlar::data
