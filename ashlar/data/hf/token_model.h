// Models of tokenizer.json, which cut a part of a text into tokens: BPE (byte-level, with byte
// fallback or neither), Unigram and WordPiece.
//
// Source  Sennrich et al. 2016; Kudo 2018, arXiv 1804.10959; Schuster and Nakajima 2012; tokenizers
//         0.23.
// Errors  kData, "PLACE: ...", for any other type, and for members that do not fit together.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/json.h"
#include "ashlar/data/hf/vocabulary.h"
#include "ashlar/data/piece_borders.h"

namespace ashlar::data {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of a part, which is not empty.
  virtual void encode(std::string_view part, std::vector<int32_t>& ids) const = 0;
  // Where a part may be cut without other ids; null: nowhere.
  virtual const PieceBorders* borders() const { return nullptr; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  int32_t unk_id() const { return unk_id_; }  // -1: none

 protected:
  Vocabulary vocabulary_;
  int32_t unk_id_ = -1;
};

std::unique_ptr<TokenModel> parse_token_model(const Json& json, const std::string& place);

std::unique_ptr<TokenModel> parse_bpe(const Json& json, const std::string& place);
std::unique_ptr<TokenModel> parse_unigram(const Json& json, const std::string& place);
std::unique_ptr<TokenModel> parse_word_piece(const Json& json, const std::string& place);

// {"TEXT": ID, ...}
Vocabulary parse_vocabulary(const Json& json, const std::string& place);
// The ids of "<0x00>" to "<0xFF>", -1 where there is none.
std::vector<int32_t> byte_tokens(const Vocabulary& vocabulary);

}  // namespace ashlar::data
