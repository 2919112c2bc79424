// Small helpers on text: names, numbers for people, nearest names for error messages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

// The known name closest to `word` by edit distance; "" if none is near (distance above a third of
// the length, plus 1).
std::string nearest_name(std::string_view word, std::span<const std::string> known);
// "; did you mean 'x'?" or "; known: a, b, c" (at most 12 names).
std::string suggestion(std::string_view word, std::span<const std::string> known);

std::string format_bytes(int64_t bytes);      // 1536 -> "1.50 KiB"
std::string format_count(double count);       // 22600000 -> "22.6M"
std::string format_duration(double seconds);  // 75.2 -> "1m15s"
std::string format_thousands(int64_t value);  // 8840488784 -> "8,840,488,784"
// Reads exactly this many lower-case hexadecimal digits, at most 16; nullopt for other text.
std::optional<uint64_t> parse_hex(std::string_view text, size_t digits);
// Foreign text (names in files, paths, hosts) made safe for a terminal or a log: control characters
// become '?' and bytes that are not UTF-8 become U+FFFD, so that no byte is a command and the text
// stays on its line.  kKeep is for text whose newlines are the program's own.
enum class NewLines : uint8_t { kReplace, kKeep };
std::string printable(std::string_view text, NewLines new_lines = NewLines::kReplace);
// n separators give n + 1 pieces, empty ones included.
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace ashlar
