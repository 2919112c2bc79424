#include "ashlar/data/hf/bytes.h"

#include <array>

#include "ashlar/core/utf8.h"

namespace ashlar::data {
namespace {

constexpr uint32_t kNumByteCharacters = 0x144;  // the last stands for byte 0xAD

constexpr std::array<uint32_t, 256> byte_characters_of_gpt2() {
  std::array<uint32_t, 256> characters{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}
constexpr std::array<uint32_t, 256> kByteCharacters = byte_characters_of_gpt2();

constexpr std::array<int16_t, kNumByteCharacters> bytes_by_character() {
  std::array<int16_t, kNumByteCharacters> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (size_t byte = 0; byte < 256; ++byte) bytes[kByteCharacters[byte]] = int16_t(byte);
  return bytes;
}
constexpr std::array<int16_t, kNumByteCharacters> kCharacterBytes = bytes_by_character();

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char c : bytes) append_code_point(out, kByteCharacters[static_cast<unsigned char>(c)]);
}

std::string byte_level_text(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  append_byte_level(out, bytes);
  return out;
}

std::optional<std::string> bytes_of_byte_level(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value >= kNumByteCharacters || kCharacterBytes[point.value] < 0) return std::nullopt;
    out += char(kCharacterBytes[point.value]);
    at += point.length;
  }
  return out;
}

}  // namespace ashlar::data
