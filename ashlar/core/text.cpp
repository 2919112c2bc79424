#include "ashlar/core/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "ashlar/core/utf8.h"

namespace ashlar {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // row[j]: from the first i bytes of a to the first j of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> known) {
  const std::string* best = nullptr;
  size_t best_distance = word.size() / 3 + 2;  // the smallest distance that is too far
  for (const std::string& name : known) {
    const size_t distance = edit_distance(word, name);
    if (distance >= best_distance) continue;
    best = &name;
    best_distance = distance;
  }
  return best ? *best : "";
}

std::string suggestion(std::string_view word, std::span<const std::string> known) {
  if (const std::string near = nearest_name(word, known); !near.empty())
    return fmt::format("; did you mean '{}'?", near);
  constexpr size_t kMaxNames = 12;
  std::string text;
  for (const std::string& name : known.first(std::min(known.size(), kMaxNames)))
    text += (text.empty() ? "; known: " : ", ") + name;
  return known.size() > kMaxNames ? text + ", ..." : text;
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // Above this bound two decimals would round up to 1024.00.
  for (; unit + 1 < kUnits.size() && std::abs(value) >= (unit == 0 ? 1024.0 : 1023.995); ++unit)
    value /= 1024.0;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array kUnits = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  // Above this bound three digits would round up to 1000.
  for (; unit + 1 < kUnits.size() && std::abs(count) >= 999.5; ++unit) count /= 1000.0;
  return fmt::format("{:.3g}{}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!(std::abs(seconds) >= 59.95)) return fmt::format("{:.3g} s", seconds);
  if (seconds < 0) return fmt::format("-{}", format_duration(-seconds));
  if (seconds >= 1e15) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string format_thousands(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool starts_group = (digits.size() - i) % 3 == 0;
    if (starts_group && !text.empty() && text != "-") text += ',';
    text += digits[i];
  }
  return text;
}

std::optional<uint64_t> parse_hex(std::string_view text, size_t digits) {
  if (text.size() != digits || text.find_first_not_of("0123456789abcdef") != text.npos)
    return std::nullopt;
  uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (parsed.ec != std::errc()) return std::nullopt;
  return number;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

std::string printable(std::string_view text, NewLines new_lines) {
  std::string shown = replace_invalid_utf8(text);
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    const bool c1 = byte == 0xC2 && i + 1 < shown.size() &&  // U+0080 to U+009F
                    static_cast<unsigned char>(shown[i + 1]) < 0xA0;
    if (new_lines == NewLines::kKeep && byte == '\n') continue;
    if (byte < ' ' || byte == 127 || c1) shown[i] = '?';
    if (c1) shown[++i] = '?';
  }
  return shown;
}

}  // namespace ashlar
