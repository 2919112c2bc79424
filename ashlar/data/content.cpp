#include "ashlar/data/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ashlar/core/text.h"
#include "ashlar/data/json_row.h"

namespace ashlar::data {
namespace {

using namespace std::string_view_literals;

struct Mark {
  std::string_view bytes;
  size_t at;
  std::string_view what, remedy;
};

constexpr auto kUnpack = "unpack it, or pack it with gzip"sv;
constexpr auto kMembers = "unpack it and give the files in it"sv;
constexpr auto kColumn = "write its column of texts as one {\"text\": \"...\"} a line (.jsonl)"sv;
constexpr auto kExtract = "extract its text (as with pdftotext)"sv;
constexpr auto kNoText = "it holds no text"sv;
constexpr auto kEncoding = "convert it with `iconv -f {} -t UTF-8`"sv;
constexpr auto kArray = "make lines of it: jq -c '.[]' FILE > FILE.jsonl"sv;

// A mark comes before a shorter one that is its beginning.
constexpr Mark kMarks[] = {
    {"\x28\xB5\x2F\xFD"sv, 0, "packed by zstd", kUnpack},
    {"\xFD\x37zXZ\0"sv, 0, "packed by xz", kUnpack},
    {"1AY&SY"sv, 4, "packed by bzip2", kUnpack},
    {"\x04\x22\x4D\x18"sv, 0, "packed by lz4", kUnpack},
    {"\x1F\x8B"sv, 0, "packed by gzip twice", "unpack it once"},
    {"\x1F\x9D"sv, 0, "packed by compress", kUnpack},
    {"PK\x03\x04"sv, 0, "a zip archive (or a document in one)", kMembers},
    {"7z\xBC\xAF\x27\x1C"sv, 0, "a 7z archive", kMembers},
    {"Rar!\x1A\x07"sv, 0, "a rar archive", kMembers},
    {"ustar"sv, 257, "a tar archive", kMembers},
    {"PAR1"sv, 0, "a Parquet table", kColumn},
    {"ARROW1\0\0"sv, 0, "an Arrow table", kColumn},
    {"Obj\x01"sv, 0, "an Avro table", kColumn},
    {"SQLite format 3\0"sv, 0, "an SQLite database", kColumn},
    {"\x89HDF\r\n\x1A\n"sv, 0, "an HDF5 file", kColumn},
    {"\x93NUMPY"sv, 0, "a NumPy array", kColumn},
    {"%PDF-"sv, 0, "a PDF document", kExtract},
    {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1"sv, 0, "an old Office document", kExtract},
    {"\x89PNG\r\n\x1A\n"sv, 0, "a PNG image", kNoText},
    {"\xFF\xD8\xFF"sv, 0, "a JPEG image", kNoText},
    {"GIF87a"sv, 0, "a GIF image", kNoText},
    {"GIF89a"sv, 0, "a GIF image", kNoText},
    {"\x7F"
     "ELF"sv,
     0, "a program", kNoText},
    {"MMIDIDX\0\0"sv, 0, "the index of a prepared dataset", "give the text it was prepared from"},
    {"\xFF\xFE\0\0"sv, 0, "UTF-32 text", kEncoding},
    {"\0\0\xFE\xFF"sv, 0, "UTF-32 text", kEncoding},
    {"\xFF\xFE"sv, 0, "UTF-16 text", kEncoding},
    {"\xFE\xFF"sv, 0, "UTF-16 text", kEncoding},
};

std::string refusal(std::string_view what, std::string_view remedy) {
  return fmt::format("{}; expected UTF-8 text or JSONL: {}", what, remedy);
}

// The file's name in lower case, without .gz and .dz.
std::string name_of_content(std::string_view path) {
  std::string name(path.substr(path.rfind('/') + 1));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view packed : {".gz"sv, ".dz"sv})
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  return name;
}

// `[` and then an object or a text, with any space between: plain text may begin with a bracket.
bool begins_array(std::string_view head) {
  constexpr auto kSpace = " \t\r\n"sv;
  const size_t open = head.find_first_not_of(kSpace);
  if (open == head.npos || head[open] != '[') return false;
  const size_t next = head.find_first_not_of(kSpace, open + 1);
  return next != head.npos && (head[next] == '{' || head[next] == '"');
}

// Recognizes UTF-16 and UTF-32 by their zeros: in a Latin letter one of two bytes is zero, or three
// of four.
// Stray zeros, which old corpora hold here and there, are accepted.
std::string refusal_of_zeros(std::string_view head) {
  const size_t zeros = static_cast<size_t>(std::count(head.begin(), head.end(), '\0'));
  if (zeros * 4 >= head.size() && zeros > 1) {
    const bool wide = zeros * 8 > head.size() * 5;
    const bool little = head[0] != '\0';
    const std::string name = fmt::format("UTF-{}{}E", wide ? 32 : 16, little ? 'L' : 'B');
    return refusal(
        fmt::format("not UTF-8 text but, by its zero bytes, {} text or binary data", name),
        fmt::format("if it is text, convert it with `iconv -f {} -t UTF-8`", name));
  }
  if (zeros > 4) return refusal("binary data (zero bytes)", "give the text itself");
  return "";
}

// Formats that are never text.
std::string refusal_of_bytes(std::string_view head) {
  for (const Mark& mark : kMarks) {
    if (!head.substr(std::min(mark.at, head.size())).starts_with(mark.bytes)) continue;
    const bool encoded = mark.remedy == kEncoding;
    return refusal(mark.what, encoded ? fmt::format(kEncoding, mark.what.substr(0, 6))
                                      : std::string(mark.remedy));
  }
  return refusal_of_zeros(head);
}

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == line.npos;
}

char first_of(std::string_view line) {  // not a space; "" has none
  const size_t at = line.find_first_not_of(" \t");
  return at == line.npos ? '\0' : line[at];
}

// The kinds of the first lines that are not blank.
struct FirstLines {
  enum Kind : uint8_t { kRow, kObject, kOther };  // an object with "text", without it, neither
  int64_t count[3] = {};
  int64_t line[3] = {};           // the first of each kind, from 1
  std::string_view first_object;  // without "text"
};

FirstLines look_at_lines(std::string_view head, bool whole) {
  constexpr int64_t kMostLines = 16;
  FirstLines lines;
  JsonRow row;
  int64_t number = 0;
  for (size_t at = 0; at < head.size();) {
    const size_t end = std::min(head.find('\n', at), head.size());
    std::string_view line = head.substr(at, end - at);
    at = end + 1;
    ++number;
    if (is_blank_line(line)) continue;
    if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    read_json_row(line, kTextMember, row);
    // The end of a long row is not known: if "text" is missing, reading the row will fail.
    const bool begins_row = !whole && end == head.size() && row.cut && first_of(line) == '{';
    FirstLines::Kind kind = FirstLines::kOther;
    if (row.kind == JsonKind::kObject) kind = FirstLines::kObject;
    if ((row.kind == JsonKind::kObject && row.member != JsonKind::kAbsent) || begins_row)
      kind = FirstLines::kRow;
    if (lines.count[kind]++ == 0) lines.line[kind] = number;
    if (kind == FirstLines::kObject && lines.first_object.empty()) lines.first_object = line;
    if (lines.count[0] + lines.count[1] + lines.count[2] == kMostLines) break;
  }
  return lines;
}

// An object that goes over several lines.
bool is_spread_object(std::string_view head, bool whole) {
  const size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == head.npos || head[begin] != '{') return false;
  JsonRow row;
  read_json_row(head, kTextMember, row);
  return row.kind == JsonKind::kObject || (!whole && row.cut);
}

constexpr auto kChoose =
    "give --input-format jsonl (--skip-bad then leaves other lines out) or --input-format text"sv;

// Why a file without the name of JSON lines is neither these nor text; nullopt: it is text.
std::optional<std::string> refusal_of_json(std::string_view head, bool whole,
                                           const FirstLines& lines) {
  const auto& [rows, objects, others] = lines.count;
  if (rows > 0) {
    const int64_t other =
        objects > 0 ? lines.line[FirstLines::kObject] : lines.line[FirstLines::kOther];
    return fmt::format("JSONL in part: line {} is an object with \"text\" and line {} is none; {}",
                       lines.line[FirstLines::kRow], other, kChoose);
  }
  if (begins_array(head)) return refusal("a JSON array", kArray);
  if (objects > 0 && others == 0)
    return fmt::format(
        "JSON lines without a member \"text\"{}; rename the member that holds the "
        "text (jq -c '{{text: .NAME}}' FILE > FILE.jsonl), or give --input-format "
        "text to read the lines as they are",
        members_of(lines.first_object));
  if (is_spread_object(head, whole))
    return refusal("a JSON object over several lines",
                   "make lines: jq -c . FILE > FILE.jsonl, or give --input-format text");
  return std::nullopt;
}

std::string refusal_of_name(std::string_view path) {
  const std::string name = name_of_content(path);
  if (name.ends_with(".csv") || name.ends_with(".tsv"))
    return refusal("a table by its name", fmt::format("{}, or give --input-format text", kColumn));
  if (name.ends_with(".json"))
    return refusal("JSON by its name", "give --input-format jsonl or text to say what it is");
  return "";
}

}  // namespace

bool is_json_lines(std::string_view path) {
  const std::string whole = name_of_content(path);
  std::string_view name = whole;
  // The suffix of a rotated or split file: .jsonl.1, .jsonl.part-00000.
  if (const size_t dot = name.rfind('.'); dot != name.npos) {
    const std::string_view last = name.substr(dot + 1);
    if (last.starts_with("part") ||
        (!last.empty() && last.find_first_not_of("0123456789") == last.npos))
      name = name.substr(0, dot);
  }
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".jsonlines");
}

std::string members_of(std::string_view row) {
  constexpr size_t kMost = 8;
  const std::vector<std::string> keys = keys_of_row(row, kMost + 1);
  if (keys.empty()) return " (it has none at all)";
  std::string names;
  for (size_t i = 0; i < std::min(kMost, keys.size()); ++i)
    names += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", printable(keys[i].substr(0, 40)));
  return fmt::format(" (there are {}{})", names, keys.size() > kMost ? ", ..." : "");
}

Content content_of(std::string_view path, std::string_view head, bool whole, InputFormat format) {
  if (std::string bytes = refusal_of_bytes(head.substr(0, kMarkBytes)); !bytes.empty())
    return {.refusal = std::move(bytes)};
  if (format == InputFormat::kText) return {};
  if (format == InputFormat::kJsonLines || is_json_lines(path)) {
    if (begins_array(head)) return {.refusal = refusal("a JSON array", kArray)};
    return {.json_lines = true};
  }
  const FirstLines lines = look_at_lines(head, whole);
  if (lines.count[FirstLines::kRow] > 0 && lines.count[FirstLines::kObject] == 0 &&
      lines.count[FirstLines::kOther] == 0)
    return {.json_lines = true, .by_content = true};
  if (auto json = refusal_of_json(head, whole, lines)) return {.refusal = std::move(*json)};
  return {.refusal = refusal_of_name(path)};
}

}  // namespace ashlar::data
