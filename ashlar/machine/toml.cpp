#include "ashlar/machine/toml.h"

#include <toml++/toml.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"

namespace ashlar::machine {

Json json_of_toml(const std::string& text, const std::string& source, std::string_view what) {
  constexpr int64_t kMostBytes = 64 << 20;
  ASHLAR_REQUIRE(int64_t(text.size()) <= kMostBytes, kConfig, "{}: {} bytes; {} has at most {}",
                 source, text.size(), what, kMostBytes);
  std::ostringstream json;
  try {
    json << toml::json_formatter{toml::parse(text)};
  } catch (const toml::parse_error& error) {
    ASHLAR_FAIL(kConfig, "{}: line {}, column {}: {}; expected TOML", source,
                error.source().begin.line, error.source().begin.column,
                printable(error.description()));
  }
  return parse_json(json.str(), source, ErrorKind::kConfig);
}

}  // namespace ashlar::machine
