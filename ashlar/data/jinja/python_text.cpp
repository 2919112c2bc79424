#include "ashlar/data/jinja/python_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "ashlar/core/utf8.h"

namespace ashlar::data::jinja {
namespace {

size_t width_at(std::string_view text, size_t at) {
  return utf8_step(text, at).length;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool ends_line(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Ranges without upper and lower case: East Asian scripts, punctuation, symbols and emoji.
bool has_no_case(uint32_t c) {
  return c < 0x80 || (c >= 0x2000 && c <= 0x2069) || (c >= 0x2190 && c <= 0x23FF) ||
         (c >= 0x2500 && c <= 0x2BFF) || (c >= 0x2E80 && c <= 0xA63F) ||
         (c >= 0xAC00 && c <= 0xD7FF) || (c >= 0x1F300 && c <= 0x1FAFF) || c >= 0x20000;
}

// Controls, formats, separators, private use: what repr escapes, for assigned characters.
bool is_escaped_by_repr(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD || (is_space(c) && c != 0x20) ||
         (c >= 0x600 && c <= 0x605) || c == 0x61C || c == 0x6DD || c == 0x70F || c == 0x180E ||
         (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || (c >= 0xE000 && c <= 0xF8FF) || c == 0xFEFF ||
         (c >= 0xFFF0 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE0FFF) || c >= 0xF0000;
}

bool is_removed(std::string_view character, std::optional<std::string_view> set) {
  if (!set) return is_space(code_point_at(character, 0).value);
  for (size_t at = 0; at < set->size(); at += width_at(*set, at))
    if (set->substr(at, width_at(*set, at)) == character) return true;
  return false;
}

char ascii_upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
}
char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

}  // namespace

std::vector<std::string> characters_of(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_at(text, at);
    characters.emplace_back(text.substr(at, width));
    at += width;
  }
  return characters;
}

std::optional<std::string_view> character_at(std::string_view text, int64_t at) {
  size_t place = 0;
  if (at >= 0) {
    for (; at > 0 && place < text.size(); --at) place += width_at(text, place);
    if (place >= text.size()) return std::nullopt;
  } else {
    for (place = text.size(); at < 0 && place > 0; ++at)
      place -= code_point_before(text, place).length;
    if (at < 0 || text.empty()) return std::nullopt;
  }
  return text.substr(place, width_at(text, place));
}

SliceRange slice_range(int64_t size, std::optional<int64_t> start, std::optional<int64_t> stop,
                       int64_t step) {
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto place = [&](std::optional<int64_t> index, int64_t usual) {
    if (!index) return usual;
    if (*index < 0) return std::max(*index + size, lowest);
    return std::min(*index, highest);
  };
  const int64_t from = place(start, step > 0 ? lowest : highest);
  const int64_t to = place(stop, step > 0 ? highest : lowest);
  SliceRange range{from, 0, step};
  if (step > 0 && to > from) range.count = (to - from - 1) / step + 1;
  // A step may be the least integer, whose negative does not exist.
  if (step < 0 && from > to)
    range.count = 1 + static_cast<int64_t>(uint64_t(from - to - 1) / (~uint64_t(step) + 1));
  return range;
}

std::string slice_text(std::string_view text, const SliceRange& range) {
  std::vector<size_t> begins;
  for (size_t at = 0; at < text.size(); at += width_at(text, at)) begins.push_back(at);
  begins.push_back(text.size());
  if (range.count == 0) return "";
  const auto at = [&](int64_t index) { return begins[static_cast<size_t>(index)]; };
  if (range.step == 1)
    return std::string(
        text.substr(at(range.first), at(range.first + range.count) - at(range.first)));
  std::string out;
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t index = range.first + i * range.step;
    out += text.substr(at(index), at(index + 1) - at(index));
  }
  return out;
}

bool is_space_text(std::string_view text) {
  return !text.empty() && strip(text, Side::kLeft).empty();
}

bool is_digit_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set) {
  if (side != Side::kRight)
    while (!text.empty() && is_removed(text.substr(0, width_at(text, 0)), set))
      text.remove_prefix(width_at(text, 0));
  if (side != Side::kLeft)
    while (!text.empty()) {
      const size_t last = text.size() - code_point_before(text, text.size()).length;
      if (!is_removed(text.substr(last), set)) break;
      text = text.substr(0, last);
    }
  return text;
}

std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t most) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t end; most != 0 && (end = text.find(separator, at)) != std::string_view::npos;
       --most) {
    parts.emplace_back(text.substr(at, end - at));
    at = end + separator.size();
  }
  parts.emplace_back(text.substr(at));
  return parts;
}

std::vector<std::string> rsplit_text(std::string_view text, std::string_view separator,
                                     int64_t most) {
  std::vector<std::string> parts;
  for (size_t begin; most != 0 && (begin = text.rfind(separator)) != std::string_view::npos;
       --most) {
    parts.emplace_back(text.substr(begin + separator.size()));
    text = text.substr(0, begin);
  }
  parts.emplace_back(text);
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string> split_space(std::string_view text, int64_t most) {
  std::vector<std::string> parts;
  for (text = strip(text, Side::kLeft); !text.empty(); text = strip(text, Side::kLeft)) {
    if (most-- == 0) {
      parts.emplace_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(code_point_at(text, end).value))
      end += width_at(text, end);
    parts.emplace_back(text.substr(0, end));
    text = text.substr(end);
  }
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_at(text, at);
    if (ends_line(code_point_at(text, at).value)) {
      lines.emplace_back(text.substr(begin, at - begin));
      begin = at + width + (text.substr(at).starts_with("\r\n") ? 1 : 0);
      at = begin;
    } else {
      at += width;
    }
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::optional<std::string> replace_text(std::string_view text, std::string_view old,
                                        std::string_view fresh, int64_t count, size_t most_bytes) {
  std::string out;
  size_t at = 0;
  while (count != 0 && at <= text.size()) {
    const size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += fresh;
    --count;
    at = found + old.size();
    if (old.empty()) {  // between all characters
      const size_t width = at < text.size() ? width_at(text, at) : 1;
      out += text.substr(std::min(at, text.size()), width);
      at += width;
    }
    if (out.size() > most_bytes) return std::nullopt;
  }
  if (at < text.size()) out += text.substr(at);
  if (out.size() > most_bytes) return std::nullopt;
  return out;
}

int64_t count_text(std::string_view text, std::string_view part) {
  if (part.empty()) return num_characters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size())
    ++count;
  return count;
}

std::optional<std::string> with_case(std::string_view text, Case wanted) {
  std::string out;
  bool inside = false;  // of a word, or of the text
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_at(text, at);
    if (!has_no_case(code_point_at(text, at).value)) return std::nullopt;
    const char c = text[at];
    const bool up = wanted == Case::kUpper || (wanted != Case::kLower && !inside);
    if (width == 1)
      out += up ? ascii_upper(c) : ascii_lower(c);
    else
      out += text.substr(at, width);
    inside = wanted == Case::kTitle ? (width == 1 && ascii_upper(c) != ascii_lower(c)) : true;
    at += width;
  }
  return out;
}

std::string repr_text(std::string_view text) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubled ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_at(text, at);
    const std::string_view character = text.substr(at, width);
    const uint32_t c = code_point_at(character, 0).value;
    at += width;
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\\' || c == static_cast<unsigned char>(quote))
      (out += '\\') += static_cast<char>(c);
    else if (!is_escaped_by_repr(c))
      out += character;
    else
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
  }
  return out += quote;
}

std::string json_text(std::string_view text, bool ensure_ascii) {
  constexpr std::pair<char, std::string_view> kShort[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
      {'\t', "\\t"}, {'\f', "\\f"},  {'\b', "\\b"}};
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t width = width_at(text, at);
    const std::string_view character = text.substr(at, width);
    const uint32_t c = code_point_at(character, 0).value;
    at += width;
    const auto* known =
        std::ranges::find(kShort, character[0], &std::pair<char, std::string_view>::first);
    if (known != std::end(kShort))
      out += known->second;
    else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000))
      out += fmt::format("\\u{:04x}", c);
    else if (ensure_ascii && c >= 0x10000)
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10),
                         0xDC00 + ((c - 0x10000) & 0x3FF));
    else
      out += character;
  }
  return out += '"';
}

}  // namespace ashlar::data::jinja
