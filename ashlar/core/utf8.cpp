#include "ashlar/core/utf8.h"

#include <algorithm>
#include <cstring>

namespace ashlar {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes before the first one that is not ASCII, from `at` on.
size_t skip_ascii(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & 0x8080808080808080ull) break;
    at += 8;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {Utf8Step::Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::Kind::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {Utf8Step::Kind::kIncomplete, i};
    if (byte(at + i) < low || byte(at + i) > high) return {Utf8Step::Kind::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Kind::kValid, length};
}

Utf8Report check_utf8(std::string_view text) {
  Utf8Report report;
  for (size_t at = skip_ascii(text, 0); at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Step::Kind::kValid) {
      if (report.num_invalid++ == 0) report.first_invalid = static_cast<int64_t>(at);
    }
    at = skip_ascii(text, at + step.length);
  }
  return report;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t ascii = skip_ascii(text, at);
    out.append(text.substr(at, ascii - at));
    if ((at = ascii) == text.size()) break;
    const Utf8Step step = utf8_step(text, at);
    out.append(step.kind == Utf8Step::Kind::kValid ? text.substr(at, step.length) : kReplacement);
    at += step.length;
  }
  return out;
}

size_t complete_utf8(std::string_view text) {
  // An unfinished character has at most three bytes: look for its lead byte among the last three.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x80) break;
    if (byte < 0xC0) continue;
    return utf8_step(text, at).kind == Utf8Step::Kind::kIncomplete ? at : text.size();
  }
  return text.size();
}

CodePoint code_point_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && continues_character(text[begin])) --begin;
  return code_point_at(text, begin);
}

void append_code_point(std::string& text, uint32_t value) {
  const auto more = [&](int shift) { text += static_cast<char>(0x80 | (value >> shift & 0x3F)); };
  if (value < 0x80) {
    text += static_cast<char>(value);
  } else if (value < 0x800) {
    text += static_cast<char>(0xC0 | value >> 6);
    more(0);
  } else if (value < 0x10000) {
    text += static_cast<char>(0xE0 | value >> 12);
    more(6), more(0);
  } else {
    text += static_cast<char>(0xF0 | value >> 18);
    more(12), more(6), more(0);
  }
}

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return !continues_character(byte); });
}

}  // namespace ashlar
