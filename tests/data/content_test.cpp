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

struct ContentCase {
  std::string path, head;
  std::vector<std::string> words;  // of the refusal; none: it is text
};

std::string utf16(const std::string& text, bool little) {
  std::string out;
  for (const char c : text) out += little ? std::string{c, '\0'} : std::string{'\0', c};
  return out;
}

const std::vector<ContentCase> kCases = {
    {"a.txt", "", {}},
    {"a.txt", "plain text", {}},
    {"a.txt", "[Illustration]\n\nText", {}},
    {"a.txt", "[[Category:Stones]]", {}},
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
    {"a.csv", "id,text\n", {"table by its name", "--input-format text"}},
    {"a.tsv.gz", "id\ttext\n", {"table by its name"}},
    {"a.json", "{\"a\": 1\n", {"JSON by its name", "--input-format"}},
    {"a.txt", "{\n \"text\": \"a\"\n}\n", {"JSON object over several lines", "jq -c"}},
    {"a.txt", "{\n  not JSON\n}\n", {}},
    {"a.txt",
     "{}\n{\"id\": 1, \"title\": \"x\"}\n",
     {"JSON lines without a member \"text\"", "it has none"}},
    {"a.log",
     "{\"id\": 1, \"title\": \"x\"}\n",
     {"(there are \"id\", \"title\")", "--input-format"}},
    {"a.txt",
     "{\"text\": \"a\"}\nplain\n",
     {"line 1 is an object with \"text\" and line 2 is none", "--input-format jsonl", "text"}},
    {"a", "plain\n\n{\"text\": \"a\"}\n", {"line 3 is an object with \"text\" and line 1 is none"}},
    {"a.txt", "{\"text\": \"a\"}\n{\"id\": 1}\n", {"line 1", "line 2 is none"}},
};

TEST(Content, IsTextOrIsNamed) {
  for (const ContentCase& c : kCases) {
    SCOPED_TRACE(c.path + ": " + c.head);
    const std::string refusal = content_of(c.path, c.head, true, InputFormat::kDetect).refusal;
    EXPECT_EQ(refusal.empty(), c.words.empty()) << refusal;
    for (const std::string& word : c.words)
      EXPECT_NE(refusal.find(word), std::string::npos) << "'" << word << "' in: " << refusal;
  }
}

// Which contents are JSON lines, judged by the content alone.
struct Kind {
  std::string path, head;
  bool whole, json, by_content;
};

TEST(Content, JsonLinesByTheirContentOrTheirName) {
  const std::string row = "{\"text\": \"one\"}\n", other = "{\"id\": 1}\n";
  for (const char* name :
       {"a.txt", "a.json", "a.json.gz", "a.csv", "a.jl", "a.log", "a", "d.jsonl/a"})
    for (const std::string& head :
         {row, "\n \r\n" + row + "\n" + row, "{\"text\": 5}\n" + row, row + "\xEF\xBB\xBF" + row}) {
      const Content content = content_of(name, head, true, InputFormat::kDetect);
      EXPECT_TRUE(content.json_lines && content.by_content) << name << head << content.refusal;
    }
  for (const char* name : {"a.jsonl", "a.JSONL", "a.ndjson", "a.jsonlines", "a.jsonl.1",
                           "x/a.jsonl.gz", "a.JSONL.GZ", "a.jsonl.part-00000", "a.jsonl.part3.gz"})
    for (const std::string& head : {row, other, std::string("plain"), std::string()}) {
      const Content content = content_of(name, head, true, InputFormat::kDetect);
      EXPECT_TRUE(content.json_lines) << name << head;
      EXPECT_EQ(content.by_content, false) << name << head;
      EXPECT_EQ(content.refusal, "") << name << head;
    }
  for (const char* name : {"a.txt", "jsonl", "a.jsonl.txt", "a.jsonl.", "a.jsonlx"})
    EXPECT_FALSE(content_of(name, "plain", true, InputFormat::kDetect).json_lines) << name;
}

// The rest of a row that the head cuts is not known; "text" may be a part of it.
TEST(Content, LongFirstRows) {
  for (const std::string head : {"{\"text\": \"on", "{\"id\": [1, ", "{\"id\": \"x"}) {
    EXPECT_TRUE(content_of("a", head, false, InputFormat::kDetect).json_lines) << head;
    const Content whole = content_of("a", head, true, InputFormat::kDetect);
    EXPECT_FALSE(whole.json_lines) << head;
    EXPECT_EQ(whole.refusal, "") << head;
  }
  EXPECT_FALSE(content_of("a", "{ not JSON", false, InputFormat::kDetect).json_lines);
}

TEST(Content, TheUserSaysWhatItIs) {
  const std::string row = "{\"text\": \"one\"}\n";
  for (const char* name : {"a.jsonl", "a.json", "a.csv", "a.txt"})
    for (const std::string& head : {row, "plain\n" + row, std::string("[\"one\"]\n")}) {
      const Content text = content_of(name, head, true, InputFormat::kText);
      EXPECT_TRUE(!text.json_lines && text.refusal.empty()) << name << head;
      const Content lines = content_of(name, head, true, InputFormat::kJsonLines);
      EXPECT_EQ(lines.refusal.empty(), head[0] != '[') << name << head;
    }
  for (const InputFormat format : {InputFormat::kText, InputFormat::kJsonLines})
    EXPECT_NE(content_of("a.txt", "PAR1....", true, format).refusal, "");
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
