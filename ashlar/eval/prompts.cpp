#include "ashlar/eval/prompts.h"

#include "ashlar/core/error.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/json_row.h"

namespace ashlar::eval {
namespace {

constexpr std::string_view kMember = "prompt", kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string prompt_of(std::string_view line, const std::string& place) {
  const Utf8Report utf8 = check_utf8(line);
  ASHLAR_REQUIRE(utf8.num_invalid == 0, kData, "{}: not UTF-8 at byte {}", place,
                 utf8.first_invalid + 1);
  data::JsonRow row;
  data::read_json_row(line, kMember, row);
  ASHLAR_REQUIRE(row.kind != data::JsonKind::kAbsent, kData,
                 "{}: not valid JSON at byte {}: expected {}", place, row.error_at + 1,
                 row.expected);
  ASHLAR_REQUIRE(row.kind == data::JsonKind::kObject, kData,
                 "{}: JSON that is {} stands there; expected {{\"prompt\": \"...\"}}", place,
                 name_of(row.kind));
  ASHLAR_REQUIRE(row.member != data::JsonKind::kAbsent, kData,
                 "{}: the object has no member \"prompt\"; expected {{\"prompt\": \"...\"}}",
                 place);
  ASHLAR_REQUIRE(row.member == data::JsonKind::kString, kData,
                 "{}: \"prompt\" is {}; expected a string", place, name_of(row.member));
  ASHLAR_REQUIRE(row.num_replaced == 0, kData,
                 "{}: \"prompt\" holds an escaped half of a surrogate pair, which is no character",
                 place);
  return std::move(row.text);
}

}  // namespace

std::vector<Prompt> parse_prompts(std::string_view lines, const std::string& path) {
  std::vector<Prompt> prompts;
  if (lines.starts_with(kByteOrderMark)) lines.remove_prefix(kByteOrderMark.size());
  for (int64_t number = 1; !lines.empty(); ++number) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (is_blank(line)) continue;
    const std::string place = fmt::format("{} line {}", path, number);
    prompts.push_back({prompt_of(line, place), place});
  }
  ASHLAR_REQUIRE(!prompts.empty(), kData,
                 "{}: it holds no prompt; expected a line {{\"prompt\": \"...\"}} for each", path);
  return prompts;
}

}  // namespace ashlar::eval
