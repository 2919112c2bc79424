// The text of generated ids as it comes, up to a stop string.
//
// Text   characters are whole (data/stream_decoder.h); what may be the beginning of a stop string
//        is held back until it is known.  The results of push and finish, joined, are the text
//        before the stop string that is complete first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/data/stream_decoder.h"

namespace ashlar::eval {

// Cuts a text that comes in pieces before the first of several strings that is complete.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // none of them empty
  std::string push(const std::string& piece);
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

class AnswerText {
 public:
  // The tokenizer and `added` must outlive it.
  AnswerText(const data::Tokenizer& tokenizer, std::span<const data::AddedToken> added,
             std::vector<std::string> stops, bool skip_special = true);
  // The ids before the answer; returns their text, in which nothing stops.
  std::string follow(std::span<const int32_t> prompt);
  std::string push(int32_t id) { return stops_.push(decode(id)); }
  std::string finish();
  // Characters decoded so far, those held back included.
  int64_t num_characters() const { return num_characters_; }
  bool stopped() const { return stops_.stopped(); }

 private:
  std::string decode(int32_t id);
  data::StreamDecoder stream_;
  StopStrings stops_;
  int64_t num_characters_ = 0;
};

// The ids of the stop strings that name a special token: in a text such a string never comes, since
// special tokens are no part of it.
std::vector<int32_t> ids_of_stops(std::span<const std::string> stops,
                                  const data::Tokenizer& tokenizer);

}  // namespace ashlar::eval
