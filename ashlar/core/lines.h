// Lines of a text that is in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace ashlar {

// Calls found(line, number) for every line, without its line feed; numbers count from 1.
template <typename Found>  // void(std::string_view line, int64_t number)
void for_each_line(std::string_view text, Found found) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    found(text.substr(0, end), number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace ashlar
