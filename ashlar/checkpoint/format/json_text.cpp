#include "ashlar/checkpoint/format/json_text.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace ashlar::checkpoint {

void append_json_string(std::string& json, std::string_view text) {
  // Rare, and left to the library.
  if (std::any_of(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; })) {
    json += nlohmann::json(text).dump();
    return;
  }
  json += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t next = std::min(text.find_first_of("\"\\", at), text.size());
    json += text.substr(at, next - at);
    if (next < text.size()) json += {'\\', text[next]};
    at = next + 1;
  }
  json += '"';
}

void append_json_list(std::string& json, std::span<const int64_t> numbers) {
  json += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) json += ',';
    char digits[24];
    json.append(digits, std::to_chars(digits, digits + sizeof digits, numbers[i]).ptr);
  }
  json += ']';
}

}  // namespace ashlar::checkpoint
