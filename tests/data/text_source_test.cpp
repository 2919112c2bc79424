#include "ashlar/data/text_source.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "tests/data/support.h"

namespace ashlar::data {
namespace {

using Texts = std::vector<std::string>;

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

Texts documents_of(const std::string& name, const std::string& content) {
  const auto files = memory_files();
  write_file(*files, name, content);
  TextSource source(*files, name);
  Texts texts;
  for (TextDocument document; source.next(document);) texts.push_back(document.text);
  EXPECT_EQ(source.stored_done(), static_cast<int64_t>(content.size()));
  return texts;
}

TEST(TextSource, PlainTextIsCutAtBlankLinesAndFormFeeds) {
  EXPECT_EQ(documents_of("a.txt", "one\n  two\n\nthree\n"), (Texts{"one\n  two", "three"}));
  EXPECT_EQ(documents_of("a.txt", "\n \n\none\n \t\r\n\n\ntwo"), (Texts{"one", "two"}));
  EXPECT_EQ(documents_of("a.txt", "one\r\ntwo\r\n\r\nthree\r\n"), (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(documents_of("a.txt", "one\ftwo\n\f\fthree\nfour\f"),
            (Texts{"one", "two", "three\nfour"}));
  EXPECT_EQ(documents_of("a.txt", "\xEF\xBB\xBFone"), (Texts{"one"}));
  EXPECT_EQ(documents_of("a.txt", "{\"text\": 1}"), (Texts{"{\"text\": 1}"}));
  EXPECT_EQ(documents_of("a.txt", ""), Texts{});
  EXPECT_EQ(documents_of("a.txt", "\n\n"), Texts{});
}

TEST(TextSource, JsonLines) {
  EXPECT_EQ(documents_of("a.jsonl",
                         "{\"text\": \"one\\n\\ntwo\", \"id\": 7}\n\n{\"text\": \"\"}\r\n"
                         "{\"text\": \"caf\\u00e9\"}"),
            (Texts{"one\n\ntwo", "caf\xC3\xA9"}));
}

TEST(TextSource, GzipIsUnpackedWhateverTheName) {
  const std::string text = "one\ntwo\n\nthree\n";
  const Texts expected{"one\ntwo", "three"};
  EXPECT_EQ(documents_of("a.txt.gz", gzip(text)), expected);
  EXPECT_EQ(documents_of("a.dict.dz", gzip(text)), expected);
  EXPECT_EQ(documents_of("a.txt", gzip(text)), expected);
  EXPECT_EQ(documents_of("a.jsonl.gz", gzip("{\"text\": \"one\"}\n")), Texts{"one"});
  EXPECT_EQ(documents_of("a.gz", gzip("one\ntw") + gzip("o\n\nthr") + gzip("ee\n")), expected)
      << "members in a row are one stream";
}

// Lines and documents that straddle the reader's buffers, against a plain split of the whole text.
TEST(TextSource, LongTextsAreReadAsTheyStand) {
  std::string text;
  Texts expected;
  for (int i = 0; i < 600; ++i) {
    std::string document = std::to_string(i);
    for (int k = 0; k < i * 7; ++k) document += static_cast<char>('a' + (i * k) % 26);
    if (i % 3 == 0) document += "\nline of " + std::to_string(i);
    expected.push_back(document);
    text += document + "\n\n";
  }
  ASSERT_GT(text.size(), size_t{1} << 20);
  EXPECT_EQ(documents_of("a.txt", text), expected);
  EXPECT_EQ(documents_of("a.txt.gz", gzip(text)), expected);
}

TEST(TextSource, KnowsWhereADocumentStarts) {
  const auto files = memory_files();
  write_file(*files, "a.txt", "one\n\n\ntwo\nthree\n\nx\ffour\n");
  TextSource source(*files, "a.txt");
  std::vector<std::pair<int64_t, int64_t>> places;
  for (TextDocument document; source.next(document);)
    places.emplace_back(document.line, document.byte);
  EXPECT_EQ(places, (std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {4, 6}, {7, 17}, {7, 19}}));
}

TEST(TextSource, FewInvalidBytesAreReplacedAndCounted) {
  const auto files = memory_files();
  write_file(*files, "a.txt", "good\n\nna\xEFve and caf\xE9\n\ngood\n");
  TextSource source(*files, "a.txt");
  Texts texts;
  for (TextDocument document; source.next(document);) texts.push_back(document.text);
  EXPECT_EQ(texts, (Texts{"good", "na\xEF\xBF\xBDve and caf\xEF\xBF\xBD", "good"}));
  EXPECT_EQ(source.replacements().count, 2);
  EXPECT_EQ(source.replacements().line, 3);
  EXPECT_EQ(source.replacements().byte, 6);
}

TEST(TextSource, ManyInvalidBytesAreTolerableOnlyInMuchText) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::string(1100, 'x') + "\xE9\n\n";
  EXPECT_EQ(documents_of("a.txt", text).size(), 40u);
  text += std::string(60, '\xE9');
  const std::string message = message_of(ErrorKind::kData, [&] { documents_of("a.txt", text); });
  EXPECT_NE(message.find("a.txt line 81 (byte 44120): byte 0xe9"), std::string::npos) << message;
}

TEST(TextSource, SixteenInvalidBytesAreTolerableInAnyText) {
  EXPECT_EQ(documents_of("a.txt", std::string(16, '\xE9') + " cafe").size(), 1u);
  message_of(ErrorKind::kData, [] { documents_of("a.txt", std::string(17, '\xE9') + " cafe"); });
}

TEST(TextSource, BadDocumentsAreLeftOutAndCounted) {
  const auto files = memory_files();
  write_file(*files, "a.jsonl",
             "{\"text\": \"one\"}\n{\"text\": null}\n{\"txt\": \"b\"}\nnot JSON\n[1]\n"
             "{\"text\": \"caf\xE9\"}\n\n{\"text\": \"two\"}\n");
  write_file(*files, "a.txt", "one\n\ncaf\xE9\n\ntwo\n");
  for (const auto& [path, count, first] :
       std::vector<std::tuple<std::string, int64_t, std::string>>{
           {"a.jsonl", 5, "a.jsonl line 2 (byte 16): \"text\" is a null; expected a string"},
           {"a.txt", 1, "a.txt line 3 (byte 5): the document there is not UTF-8"}}) {
    TextSource source(*files, path, BadDocuments::kSkip);
    Texts texts;
    for (TextDocument document; source.next(document);) texts.push_back(document.text);
    EXPECT_EQ(texts, (Texts{"one", "two"}));
    EXPECT_EQ(source.skipped().count, count);
    EXPECT_EQ(source.skipped().first, first);
    EXPECT_EQ(source.replacements().count, 0);
  }
  TextSource strict(*files, "a.jsonl");
  TextDocument document;
  EXPECT_TRUE(strict.next(document));
  EXPECT_NE(message_of(ErrorKind::kData, [&] { strict.next(document); }).find("--skip-bad"),
            std::string::npos);
}

TEST(TextSource, EndlessLinesAndDocumentsAreRefused) {
  const std::string line(static_cast<size_t>(kMaxDocumentBytes) + 2'000'000, 'x');
  EXPECT_NE(message_of(ErrorKind::kData, [&] { documents_of("a.txt", line); }).find("a.txt line 1"),
            std::string::npos);
  EXPECT_EQ(documents_of("a.txt", line.substr(0, static_cast<size_t>(kMaxDocumentBytes))).size(),
            1u);
  std::string document;
  while (document.size() <= static_cast<size_t>(kMaxDocumentBytes))
    document += std::string(1 << 20, 'x') + "\n";
  const std::string message =
      message_of(ErrorKind::kData, [&] { documents_of("a.txt", document); });
  EXPECT_NE(message.find("the document is longer than"), std::string::npos) << message;
}

}  // namespace
}  // namespace ashlar::data
