// Decodes ids one by one as they are generated.  The strings returned by push and finish, joined,
// are the result of Tokenizer::decode for all ids at once.
//
// An id above the tokenizer's vocabulary, which a model with a larger one can generate, is the
// added token of that id, or U+FFFD; a negative id is kData.  push holds back the bytes of an
// unfinished UTF-8 character.  To continue a prompt, push its ids first and drop the results: then
// the space before the first new word is kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ashlar/data/tokenizer.h"

namespace ashlar::data {

class StreamDecoder {
 public:
  // Both must outlive it.  skip_special: leaves special tokens of a tokenizer.json out; of other
  // tokenizers, pad, eos and bos have no text, and added tokens are always shown.
  explicit StreamDecoder(const Tokenizer& tokenizer, std::span<const AddedToken> added = {},
                         bool skip_special = false);
  std::string push(int32_t id);
  std::string finish();  // the rest; an unfinished character becomes U+FFFD

 private:
  std::string piece(int32_t id) const;
  std::string next_of_pieces(int32_t id);
  const Tokenizer& tokenizer_;
  std::span<const AddedToken> added_;
  bool skip_special_;
  std::unique_ptr<TextStream> stream_;  // null: pieces are joined here
  std::string held_;                    // bytes of an unfinished character
  bool at_start_;                       // a leading space may still have to be dropped
};

}  // namespace ashlar::data
