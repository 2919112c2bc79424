// Encodes text with a sentencepiece model, with the ids of the library.
//
// How it works.  A text is cut at the borders of pieces (piece_borders.h), and most parts are words
// that come again: their ids are remembered.  The library adds scores of unigram pieces up in
// single precision from the beginning of a text, so that roundings decide between cuts of nearly
// equal scores.  A remembered part counts only if its best cut is better than all others by more
// than these can be; else it is cut again, with the sum so far.
//
// Source   the models BPE and unigram of sentencepiece 0.1.97.
// Threads  encode may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ashlar/data/sentencepiece_model.h"

namespace ashlar::data {

class SentencePieceEncoder {
 public:
  virtual ~SentencePieceEncoder() = default;
  // text: valid UTF-8.  adds_space: a space is put in front.
  virtual std::vector<int32_t> encode(std::string_view text, bool adds_space) const = 0;
  // The number of bytes of a text, of which more will follow, whose ids do not depend on the rest,
  // nor those of the rest on them; 0: none.
  virtual size_t independent_part(std::string_view text) const = 0;
};

// Null for models that only the library encodes: word and character models, and those that replace
// characters, drop spaces or put them behind words, or have pieces that are user-defined, unused or
// above 256 bytes.
std::unique_ptr<SentencePieceEncoder> make_sentencepiece_encoder(const SentencePieceModel& model);

}  // namespace ashlar::data
