#include "ashlar/launch/output_lines.h"

#include <algorithm>
#include <charconv>
#include <cstring>

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

// "srun: error: NODE: task 1: Exited with exit code 24", or with the description of a signal.
std::optional<BlamedRank> blamed_by_srun(std::string_view line) {
  constexpr int kLastSignal = 64;
  const size_t at = line.find(": task");
  if (at == line.npos) return std::nullopt;
  std::string_view rest = line.substr(at + 6);
  take_words(rest, "s");
  const std::optional<int> rank = take_words(rest, " ") ? take_number(rest) : std::nullopt;
  const size_t end = rest.find(": ");
  if (!rank || end == rest.npos) return std::nullopt;
  rest.remove_prefix(end + 2);
  BlamedRank blamed{.rank = *rank};
  if (take_words(rest, "Exited with exit code ")) {
    blamed.exit_code = take_number(rest).value_or(0);
    return blamed;
  }
  for (int number = 1; number <= kLastSignal; ++number)
    if (const char* text = sigdescr_np(number); text && rest.starts_with(text))
      blamed.signal = number;
  return blamed.signal > 0 ? std::optional(blamed) : std::nullopt;
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

OutputLine parse_labelled(std::string_view line) {
  std::string_view rest = line;
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  if (const std::optional<int> rank = take_number(rest); rank && *rank >= 0)
    if (take_words(rest, ":")) {
      take_words(rest, " ");
      return {*rank, std::string(rest)};
    }
  return {-1, std::string(line)};
}

std::optional<BlamedRank> blamed_rank(std::string_view line) {
  constexpr std::string_view kSignal = "noticed that process rank ", kName = "Process name: [[";
  if (line.starts_with("srun: error: ")) return blamed_by_srun(line);
  std::string_view rest;
  const size_t at = line.find(kName), comma = line.find("],", at);
  if (const size_t noticed = line.find(kSignal); noticed != line.npos)
    rest = line.substr(noticed + kSignal.size());
  else if (at != line.npos && comma != line.npos)
    rest = line.substr(comma + 2);
  const std::optional<int> rank = take_number(rest);
  return rank ? std::optional<BlamedRank>({.rank = *rank}) : std::nullopt;
}

std::string failed_node(std::string_view line) {
  return take_words(line, "srun: error: Node failure on ") ? std::string(line) : "";
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
