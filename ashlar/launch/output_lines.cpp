#include "ashlar/launch/output_lines.h"

#include <algorithm>
#include <charconv>

namespace ashlar::launch {
namespace {

// Reads a number and moves `text` behind it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(size_t(end - text.data()));
  return number;
}

bool take_words(std::string_view& text, std::string_view words) {
  if (!text.starts_with(words)) return false;
  text.remove_prefix(words.size());
  return true;
}

}  // namespace

OutputLine parse_tagged(std::string_view line) {
  std::string_view rest = line;
  if (take_words(rest, "[") && take_number(rest) && take_words(rest, ",")) {
    const std::optional<int> rank = take_number(rest);
    if (rank && take_words(rest, "]<") &&
        (take_words(rest, "stdout>:") || take_words(rest, "stderr>:")))
      return {*rank, std::string(rest)};
  }
  return {-1, std::string(line)};
}

std::optional<int> blamed_rank(std::string_view line) {
  constexpr std::string_view kSignal = "noticed that process rank ", kName = "Process name: [[";
  if (const size_t at = line.find(kSignal); at != line.npos) {
    std::string_view rest = line.substr(at + kSignal.size());
    return take_number(rest);
  }
  const size_t at = line.find(kName), comma = line.find("],", at);
  if (at == line.npos || comma == line.npos) return std::nullopt;
  std::string_view rest = line.substr(comma + 2);
  return take_number(rest);
}

std::optional<int> accused_rank(std::string_view error) {
  constexpr std::string_view kBegin = "rank ";
  if (!error.starts_with(kBegin)) return std::nullopt;
  std::string_view rest = error.substr(kBegin.size());
  return take_number(rest);
}

void LineCutter::add(std::string_view bytes,
                     const std::function<void(std::string_view line)>& take) {
  rest_ += bytes;
  size_t begin = 0;
  for (;;) {
    const size_t end = std::min(rest_.find('\n', begin), rest_.size());
    const bool cut = end - begin > kLongestLine;
    if (end == rest_.size() && !cut) break;
    const size_t length = cut ? kLongestLine : end - begin;
    take(std::string_view(rest_).substr(begin, length));
    begin += length + (cut ? 0 : 1);
  }
  rest_.erase(0, begin);
}

void LineCutter::finish(const std::function<void(std::string_view line)>& take) {
  if (!rest_.empty()) take(rest_);
  rest_.clear();
}

}  // namespace ashlar::launch
