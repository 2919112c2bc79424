// Translates regular expressions of Oniguruma's Ruby syntax to PCRE2's, for UTF-8 text with Unicode
// properties, multi-line ^ and $, and line feeds as the only line ends.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::data {

struct TranslatedPattern {
  std::string pcre;
  // Characters above U+007F that the expression names itself, by themselves or as ranges.
  std::vector<std::pair<uint32_t, uint32_t>> named;
};

// kData, "PLACE: ...", for syntax that means something else to PCRE2 and is not translated.
TranslatedPattern translate_pattern(const std::string& expression, const std::string& place);

}  // namespace ashlar::data
