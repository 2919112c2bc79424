#include "ashlar/eval/prompts.h"

#include "ashlar/core/error.h"
#include "ashlar/core/lines.h"
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

std::vector<Prompt> lines_of(std::string_view lines, const std::string& path,
                             std::string_view expected) {
  std::vector<Prompt> found;
  if (lines.starts_with(kByteOrderMark)) lines.remove_prefix(kByteOrderMark.size());
  for_each_line(lines, [&](std::string_view line, int64_t number) {
    if (!is_blank(line))
      found.push_back({std::string(line), fmt::format("{} line {}", path, number)});
  });
  ASHLAR_REQUIRE(!found.empty(), kData, "{}: it holds nothing; expected a line {} for each", path,
                 expected);
  return found;
}

std::vector<Prompt> parse_prompts(std::string_view lines, const std::string& path) {
  std::vector<Prompt> prompts = lines_of(lines, path, "{\"prompt\": \"...\"}");
  for (Prompt& prompt : prompts) prompt.text = prompt_of(prompt.text, prompt.place);
  return prompts;
}

std::string as_chat_row(const std::string& chat) {
  const size_t begin = chat.find_first_not_of(" \t\r\n");
  const bool list = begin != chat.npos && chat[begin] == '[';
  return list ? fmt::format("{{\"messages\": {}}}", chat) : chat;
}

}  // namespace ashlar::eval
