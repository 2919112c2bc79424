#include "ashlar/data/stream_decoder.h"

#include <algorithm>

#include "ashlar/core/utf8.h"

namespace ashlar::data {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, std::span<const AddedToken> added,
                             bool skip_special)
    : tokenizer_(tokenizer),
      added_(added),
      skip_special_(skip_special),
      stream_(tokenizer.text_stream(skip_special)),
      at_start_(tokenizer.leading_space() != LeadingSpace::kKeep) {}

std::string StreamDecoder::piece(int32_t id) const {
  if (id < tokenizer_.vocab_size()) return tokenizer_.piece(id);
  const auto token = std::ranges::find(added_, id, &AddedToken::id);
  return token == added_.end() ? "\xef\xbf\xbd" : token->content;
}

std::string StreamDecoder::push(int32_t id) {
  return stream_ ? stream_->push(id) : next_of_pieces(id);
}

std::string StreamDecoder::next_of_pieces(int32_t id) {
  const bool known = id < tokenizer_.vocab_size();
  std::string piece = this->piece(id);
  if (at_start_ && !piece.empty()) {
    const bool dropped = known && tokenizer_.starts_word(id);
    if (dropped) piece.erase(0, 1);
    at_start_ = dropped && piece.empty() && tokenizer_.leading_space() == LeadingSpace::kDropAll;
  }
  held_ += piece;
  const size_t complete = complete_utf8(held_);
  std::string out = replace_invalid_utf8(std::string_view(held_).substr(0, complete));
  held_.erase(0, complete);
  return out;
}

std::string StreamDecoder::finish() {
  if (stream_) {
    std::string rest = stream_->finish();
    stream_ = tokenizer_.text_stream(skip_special_);
    return rest;
  }
  std::string out = replace_invalid_utf8(held_);
  held_.clear();
  at_start_ = tokenizer_.leading_space() != LeadingSpace::kKeep;
  return out;
}

}  // namespace ashlar::data
