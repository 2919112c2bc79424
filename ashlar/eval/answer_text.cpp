#include "ashlar/eval/answer_text.h"

#include <algorithm>
#include <utility>

#include "ashlar/core/utf8.h"

namespace ashlar::eval {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopStrings::push(const std::string& piece) {
  if (stopped_) return "";
  held_ += piece;
  // The stop string that is complete first counts, and of those that end together the longest.
  size_t begin = held_.npos, end = held_.npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == held_.npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin))
      begin = at, end = at + stop.size();
  }
  if (begin != held_.npos) {
    stopped_ = true;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  // The longest end of the text that begins a stop string stays.
  size_t kept = 0;
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length)
      if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) kept = length;
  std::string out = held_.substr(0, held_.size() - kept);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

AnswerText::AnswerText(const data::Tokenizer& tokenizer, std::span<const data::AddedToken> added,
                       std::vector<std::string> stops, bool skip_special)
    : stream_(tokenizer, added, skip_special), stops_(std::move(stops)) {}

std::string AnswerText::follow(std::span<const int32_t> prompt) {
  std::string text;
  for (const int32_t id : prompt) text += decode(id);
  return text;
}

std::string AnswerText::decode(int32_t id) {
  std::string text = stream_.push(id);
  num_characters_ += ashlar::num_characters(text);
  return text;
}

std::string AnswerText::finish() {
  std::string rest = stops_.push(stream_.finish());
  return rest + stops_.finish();
}

std::vector<int32_t> ids_of_stops(std::span<const std::string> stops,
                                  const data::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string& stop : stops) {
    const int32_t id = tokenizer.id_of(stop);
    if (id >= 0 && tokenizer.decode(std::span(&id, 1), true).empty()) ids.push_back(id);
  }
  return ids;
}

}  // namespace ashlar::eval
