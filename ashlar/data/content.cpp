#include "ashlar/data/content.h"

#include <fmt/core.h>

#include <algorithm>

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

// The longer of two marks that begin alike stands first.
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

std::string_view without_packing(std::string_view path) {
  for (const std::string_view packed : {".gz"sv, ".dz"sv})
    if (path.ends_with(packed)) path.remove_suffix(packed.size());
  return path;
}

// `[` and then an object or a text, with any space between: plain text may begin with a bracket.
bool begins_array(std::string_view head) {
  constexpr auto kSpace = " \t\r\n"sv;
  const size_t open = head.find_first_not_of(kSpace);
  if (open == head.npos || head[open] != '[') return false;
  const size_t next = head.find_first_not_of(kSpace, open + 1);
  return next != head.npos && (head[next] == '{' || head[next] == '"');
}

// Knows UTF-16 and UTF-32 by their zeros: a Latin letter has one of its two bytes zero, or three of
// four.
// Old corpora hold a stray zero here and there, which is left to them.
std::string refusal_of_zeros(std::string_view head) {
  const size_t zeros = static_cast<size_t>(std::count(head.begin(), head.end(), '\0'));
  if (zeros * 4 >= head.size() && zeros > 0) {
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

}  // namespace

bool is_json_lines(std::string_view path) {
  const std::string_view name = without_packing(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

std::string not_text(std::string_view path, std::string_view head) {
  for (const Mark& mark : kMarks) {
    if (!head.substr(std::min(mark.at, head.size())).starts_with(mark.bytes)) continue;
    const bool encoded = mark.remedy == kEncoding;
    return refusal(mark.what, encoded ? fmt::format(kEncoding, mark.what.substr(0, 6))
                                      : std::string(mark.remedy));
  }
  if (std::string zeros = refusal_of_zeros(head); !zeros.empty()) return zeros;
  if (begins_array(head)) return refusal("a JSON array", kArray);
  const std::string_view name = without_packing(path);
  if (name.ends_with(".csv") || name.ends_with(".tsv"))
    return refusal("a table by its name", fmt::format("{}, or rename it if it is text", kColumn));
  if (name.ends_with(".json"))
    return refusal("JSON by its name", "rename it to .jsonl if it has one object a line");
  return "";
}

}  // namespace ashlar::data
