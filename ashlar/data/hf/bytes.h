// Bytes as characters: printable bytes are themselves, the others follow from U+0100 on, in their
// order.
//
// Source  GPT-2's encoder.py; the step ByteLevel of tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar::data {

void append_byte_level(std::string& out, std::string_view bytes);
std::string byte_level_text(std::string_view bytes);
// The bytes; nullopt if a character stands for none.
std::optional<std::string> bytes_of_byte_level(std::string_view text);

}  // namespace ashlar::data
