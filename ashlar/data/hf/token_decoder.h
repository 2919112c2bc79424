// Decoders of tokenizer.json, which make text of tokens: ByteLevel, ByteFallback, Replace, Fuse,
// Strip, Metaspace, WordPiece, BPEDecoder, and a Sequence of them.  Without one, tokens are joined
// by spaces.
//
// Source  tokenizers 0.23.
// Errors  kData, "PLACE: ...", for any other type or member.
#pragma once

#include <memory>
#include <string>

#include "ashlar/core/json.h"

namespace ashlar::data {

// Decodes one text token by token: the results of push and finish, joined, are the library's result
// for all tokens at once.  A result comes as soon as no later token can change it.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::string push(std::string token) = 0;
  virtual std::string finish() = 0;
};

class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  virtual std::unique_ptr<TokenStream> stream() const = 0;  // which the decoder must outlive
  // The bytes that a token stands for between others, perhaps a part of a character.
  virtual std::string piece(const std::string& token) const = 0;
};

std::unique_ptr<TokenDecoder> parse_token_decoder(const Json& json, const std::string& place);

}  // namespace ashlar::data
