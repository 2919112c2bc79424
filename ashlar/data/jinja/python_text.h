// Python's functions of strings, on UTF-8: characters are code points.
//
// Source  Python 3.11, str and json.  All texts must be valid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::data::jinja {

std::vector<std::string> characters_of(std::string_view text);
// The character at `at`, from the end if negative; nullopt outside of the text.
std::optional<std::string_view> character_at(std::string_view text, int64_t at);

// The indices that [start:stop:step] takes of `size` items.
struct SliceRange {
  int64_t first = 0, count = 0, step = 1;
};
SliceRange slice_range(int64_t size, std::optional<int64_t> start, std::optional<int64_t> stop,
                       int64_t step);  // step != 0
std::string slice_text(std::string_view text, const SliceRange& range);

bool is_space_text(std::string_view text);  // str.isspace()
bool is_digit_text(std::string_view text);  // str.isdigit(), of ASCII

enum class Side : uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };
// `set`: the characters to remove; nullopt: white space, as Unicode has it.
std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> set = {});

// At most `most` cuts; negative: any number.  split_text requires a separator.
std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t most);
std::vector<std::string> rsplit_text(std::string_view text, std::string_view separator,
                                     int64_t most);
std::vector<std::string> split_space(std::string_view text, int64_t most);
std::vector<std::string> split_lines(std::string_view text);
// nullopt: the result would exceed `most_bytes`.
std::optional<std::string> replace_text(std::string_view text, std::string_view old,
                                        std::string_view fresh, int64_t count, size_t most_bytes);
int64_t count_text(std::string_view text, std::string_view part);

enum class Case : uint8_t { kLower, kUpper, kCapitalized, kTitle };
// nullopt: the text has letters beyond ASCII, whose case is not known here.
std::optional<std::string> with_case(std::string_view text, Case wanted);

std::string repr_text(std::string_view text);                     // Python's repr
std::string json_text(std::string_view text, bool ensure_ascii);  // json.dumps()

}  // namespace ashlar::data::jinja
