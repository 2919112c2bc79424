#include "ashlar/data/content.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/text_source.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

using namespace std::string_literals;

struct Case {
  std::string path, head;
  std::vector<std::string> words;  // of the refusal; none: it is text
};

std::string utf16(const std::string& text, bool little) {
  std::string out;
  for (const char c : text) out += little ? std::string{c, '\0'} : std::string{'\0', c};
  return out;
}

const std::vector<Case> kCases = {
    {"a.txt", "", {}},
    {"a.txt", "plain text", {}},
    {"a.txt", "[Illustration]\n\nText", {}},
    {"a.txt", "[[Category:Stones]]", {}},
    {"a.txt", "{\"text\": \"one\"}\n", {}},
    {"a.jsonl", "{\"text\": \"one\"}\n", {}},
    {"a.txt", "four zeros stand here \0\0\0\0 and text goes on"s, {}},
    {"a.txt", "five zeros stand here \0\0\0\0\0 and text goes on"s, {"binary data"}},
    {"a.txt", "\x28\xB5\x2F\xFD....", {"zstd", "unpack it"}},
    {"a.txt", "\xFD\x37zXZ\0...."s, {"xz", "unpack it"}},
    {"a.txt", "BZh91AY&SY....", {"bzip2", "unpack it"}},
    {"a.txt", "BZh is a short word", {}},
    {"a.txt", "PK\x03\x04....", {"zip archive"}},
    {"a.txt", std::string(257, 'x') + "ustar", {"tar archive"}},
    {"a.txt", std::string(256, 'x') + "ustar", {}},
    {"a.txt", "\x1F\x8B\x08", {"gzip twice"}},
    {"a.txt", "PAR1....", {"Parquet", ".jsonl"}},
    {"a.txt", "SQLite format 3\0...."s, {"SQLite"}},
    {"a.txt", "%PDF-1.7\n", {"PDF", "pdftotext"}},
    {"a.txt", "\x89PNG\r\n\x1A\n....", {"PNG"}},
    {"a.txt", "MMIDIDX\0\0....."s, {"index of a prepared dataset"}},
    {"a.txt", "\xFF\xFEo\0n\0"s, {"UTF-16", "iconv -f UTF-16 -t UTF-8"}},
    {"a.txt", "\xFE\xFF\0o\0n"s, {"UTF-16", "iconv -f UTF-16 -t UTF-8"}},
    {"a.txt", "\xFF\xFE\0\0o\0\0\0"s, {"UTF-32", "iconv -f UTF-32 -t UTF-8"}},
    {"a.txt", utf16("one stone", true), {"UTF-16LE", "iconv -f UTF-16LE"}},
    {"a.txt", utf16("one stone", false), {"UTF-16BE", "iconv -f UTF-16BE"}},
    {"a.txt", "o\0\0\0n\0\0\0e\0\0\0"s, {"UTF-32LE"}},
    {"a.txt", " [\n  {\"text\": \"one\"}]", {"JSON array", "jq -c"}},
    {"a.jsonl", "[{\"text\": \"one\"}]", {"JSON array", "jq -c"}},
    {"a.txt", "[\"one\", \"two\"]", {"JSON array"}},
    {"a.csv", "id,text\n", {"table by its name", "rename it"}},
    {"a.tsv.gz", "id\ttext\n", {"table by its name"}},
    {"a.json", "{\"text\": \"one\"}\n", {"JSON by its name", "rename it to .jsonl"}},
    {"a.ndjson", "{\"text\": \"one\"}\n", {}},
};

TEST(Content, IsTextOrIsNamed) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.path + ": " + c.head);
    const std::string refusal = not_text(c.path, c.head);
    EXPECT_EQ(refusal.empty(), c.words.empty()) << refusal;
    for (const std::string& word : c.words)
      EXPECT_NE(refusal.find(word), std::string::npos) << "'" << word << "' in: " << refusal;
  }
}

TEST(Content, IsLookedAtByWhoeverReadsText) {
  const auto files = memory_files();
  Log log([](std::string_view) {});
  write_file(*files, "a.txt", "PAR1....");
  write_file(*files, "b.txt", "\xEF\xBB\xBF[{\"text\": 1}]");  // behind a byte order mark
  for (const std::string path : {"a.txt", "b.txt"}) {
    const std::vector<std::string> inputs{path};
    for (const std::string& message :
         {message_of(ErrorKind::kData, [&] { TextSource(*files, path); }),
          message_of(ErrorKind::kData, [&] { train_sentencepiece(*files, inputs, {}, log); })})
      EXPECT_TRUE(message.starts_with(path + ": it is a ")) << message;
  }
}

}  // namespace
}  // namespace ashlar::data
