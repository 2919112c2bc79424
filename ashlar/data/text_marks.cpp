#include "ashlar/data/text_marks.h"

#include <fmt/core.h>

#include <string_view>

namespace ashlar::data {
namespace {

using namespace std::string_view_literals;

struct Kind {
  std::string_view bytes, name, meaning;
};

constexpr size_t kReturnMark = 0, kSpaceMark = 1, kNameMark = 4;
constexpr std::array<Kind, TextMarks::kNumKinds> kKinds = {{
    // The reader has turned "\r\n" into a line feed.
    {"\r"sv, "carriage returns stand without a line feed",
     "if they are the line ends of an old Mac, make lines with tr '\\r' '\\n'"},
    {"\xE2\x96\x81"sv, "characters are U+2581",
     "the tokenizer has it for a space, so that they decode as spaces"},
    {"\0"sv, "characters are NUL", "tr -d '\\000' removes them"},
    {"\xEF\xBB\xBF"sv, "byte order marks stand inside a text",
     "where files were joined, sed 's/\\xEF\\xBB\\xBF//g' removes them"},
    {"<|endoftext|>"sv, "<|endoftext|> stand in the texts",
     "they are text like any other and end no document: make them blank lines and give --documents "
     "blank-line, or make a row of JSONL of each document"},
}};

}  // namespace

void TextMarks::look_at(const TextDocument& document, bool plain, const std::string& path) {
  const std::string_view text = document.text;
  for (size_t kind = 0; kind < kKinds.size(); ++kind) {
    if ((kind == kReturnMark && !plain) || (kind == kSpaceMark && !marks_spaces_)) continue;
    if (kind == kNameMark && reads_names_) continue;
    const std::string_view bytes = kKinds[kind].bytes;
    for (size_t at = text.find(bytes); at != text.npos; at = text.find(bytes, at + bytes.size()))
      if (found_[kind].count++ == 0)
        found_[kind].first = fmt::format("{} line {}", path, document.line);
  }
}

std::vector<std::string> TextMarks::told() const {
  std::vector<std::string> lines;
  for (size_t kind = 0; kind < kKinds.size(); ++kind)
    if (const Found& found = found_[kind]; found.count > 0)
      lines.push_back(
          fmt::format("{} {} (the first in the document or part at {}) and are kept: {}",
                      found.count, kKinds[kind].name, found.first, kKinds[kind].meaning));
  return lines;
}

}  // namespace ashlar::data
