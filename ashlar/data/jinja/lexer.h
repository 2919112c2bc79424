// Cuts a template into tokens, as Jinja2's lexer does with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/data/jinja/syntax.h"

namespace ashlar::data::jinja {

struct TemplateToken {
  enum class Kind : uint8_t {
    kText,           // between tags; text
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text, without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  SourcePlace place;
  std::string text = {};
};

// Ends with a token kEnd.  Errors  kData: not UTF-8, an unknown character, an open string, comment,
// tag or bracket.
std::vector<TemplateToken> tokens_of(std::string_view source, const std::string& name);

}  // namespace ashlar::data::jinja
