// JSON written piece by piece, in the form in which nlohmann::json prints it: headers of checkpoint
// files have many thousands of values, and values of that library take most of the time to make.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ashlar::checkpoint {

// Errors   those of nlohmann::json's dump: the text is not UTF-8.
void append_json_string(std::string& json, std::string_view text);
void append_json_list(std::string& json, std::span<const int64_t> numbers);

}  // namespace ashlar::checkpoint
