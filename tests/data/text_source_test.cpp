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

constexpr TextOptions kBlankLine{.documents = Documents::kBlankLine};

Texts documents_of(const std::string& name, const std::string& content,
                   const TextOptions& options = kBlankLine) {
  const auto files = memory_files();
  write_file(*files, name, content);
  TextSource source(*files, name, options);
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
  EXPECT_EQ(documents_of("a.txt", ""), Texts{});
  EXPECT_EQ(documents_of("a.txt", "\n\n"), Texts{});
}

// A file, whole or in parts, against the text with line feeds and without its last line end.
struct WholeFile {
  std::string content, document;  // "": none
};

TEST(TextSource, AFileIsADocument) {
  const std::string bom = "\xEF\xBB\xBF", part(static_cast<size_t>(kPartBytes), 'x');
  const std::string odd = part.substr(1) + "\xE2\x82\xAC";  // a character over the border
  for (const WholeFile& c : std::vector<WholeFile>{
           {"one\n  two\n\nthree\n", "one\n  two\n\nthree"},
           {"\n\none\ftwo\r\n\r\nthree\r\n\r\n", "\n\none\ftwo\n\nthree\n"},
           {bom + "one", "one"},
           {"one\rtwo\r", "one\rtwo"},
           {"", ""},
           {" \t\r\n\f\n", ""},
           {part, part},
           {part + "\n", part},
           {part + "\r\n", part},
           {part.substr(1) + "\r\ny", part.substr(1) + "\ny"},
           {part.substr(1) + "\n\n", part.substr(1) + "\n"},
           {odd + odd + "\n", odd + odd},
           {part + "\n" + part + "\r\n" + part + "y\n", part + "\n" + part + "\n" + part + "y"}}) {
    const Texts parts = documents_of("a.txt", c.content, {});
    std::string document;
    for (const std::string& text : parts) {
      EXPECT_EQ(check_utf8(text).num_invalid, 0);
      EXPECT_LE(static_cast<int64_t>(text.size()), kPartBytes + 1);
      document += text;
    }
    EXPECT_TRUE(document == c.document) << c.content.substr(0, 30);
    EXPECT_EQ(parts.empty(), c.document.empty());
    EXPECT_TRUE(documents_of("a.txt.gz", gzip(c.content), {}) == parts);
  }
}

TEST(TextSource, PartsOfAFileSayWhereTheyStand) {
  const auto files = memory_files();
  const std::string half(static_cast<size_t>(kPartBytes) / 2, 'x');
  write_file(*files, "a.txt", half + "\n" + half + "\n" + half + "\xE9\n" + half);
  TextSource source(*files, "a.txt");
  std::vector<std::tuple<bool, bool, int64_t, int64_t>> places;
  for (TextDocument part; source.next(part);)
    places.emplace_back(part.begins, part.ends, part.line, part.byte);
  EXPECT_EQ(
      places,
      (std::vector<std::tuple<bool, bool, int64_t, int64_t>>{
          {true, false, 1, 0}, {false, false, 2, kPartBytes}, {false, true, 4, 2 * kPartBytes}}));
  EXPECT_EQ(source.replacements().count, 1);
  EXPECT_EQ(source.replacements().line, 2);
}

// Nothing of a long file is given before it is known to be UTF-8 to its end.
TEST(TextSource, ALongBadFileIsLeftOutWhole) {
  const std::string text(static_cast<size_t>(kPartBytes) * 3, 'x');
  const TextOptions skip{.bad = BadDocuments::kSkip};
  for (const std::string& bad :
       {std::string("\xE9"), std::string("\xE9 x"), std::string("\xE2\x82")}) {
    const auto files = memory_files();
    write_file(*files, "a.txt", text + bad);
    TextSource source(*files, "a.txt", skip);
    TextDocument document;
    EXPECT_FALSE(source.next(document));
    EXPECT_EQ(source.skipped().count, 1);
    EXPECT_EQ(source.skipped().first, "a.txt: the file is not UTF-8");
  }
  EXPECT_EQ(documents_of("a.txt", text + "\xE2\x82\xAC", skip).size(), 4u);
}

TEST(TextSource, ALineIsADocument) {
  EXPECT_EQ(documents_of("a.txt", "one\n\n  two\r\n \t\nthree", {.documents = Documents::kLine}),
            (Texts{"one", "  two", "three"}));
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

// As gzip(1) and Python's gzip: zeros behind a member are padding, to the file's end or to another.
TEST(TextSource, GzipMayBePadded) {
  const std::string packed = gzip("one\n\n"), more = gzip("two\n");
  for (const size_t zeros : {1u, 512u, 300'000u}) {
    const std::string padding(zeros, '\0');
    EXPECT_EQ(documents_of("a.gz", packed + padding), Texts{"one"}) << zeros;
    EXPECT_EQ(documents_of("a.gz", packed + padding + more), (Texts{"one", "two"})) << zeros;
    for (const std::string& bad : {padding + "garbage!", padding + more.substr(0, more.size() - 6)})
      EXPECT_NE(message_of(ErrorKind::kData, [&] { documents_of("a.gz", packed + bad); })
                    .find("the gzip stream"),
                std::string::npos)
          << zeros;
  }
  message_of(ErrorKind::kData, [&] { documents_of("a.GZ", "one"); });
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
  TextSource source(*files, "a.txt", kBlankLine);
  std::vector<std::pair<int64_t, int64_t>> places;
  for (TextDocument document; source.next(document);)
    places.emplace_back(document.line, document.byte);
  EXPECT_EQ(places, (std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {4, 6}, {7, 17}, {7, 19}}));
}

TEST(TextSource, FewInvalidBytesAreReplacedAndCounted) {
  const auto files = memory_files();
  write_file(*files, "a.txt", "good\n\nna\xEFve and caf\xE9\n\ngood\n");
  TextSource source(*files, "a.txt", kBlankLine);
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

// Python's json reads the same lines, and writes the first three.
TEST(TextSource, JsonOfOtherPrograms) {
  const std::string deep(100'000, '[');
  const std::string lines =
      "{\"text\": \"a\", \"score\": NaN}\n{\"text\": \"b\", \"score\": -Infinity}\n"
      "{\"text\": \"c\", \"score\": Infinity}\n"
      "{\"id\": 123456789012345678901234567890, \"x\": [1e400, -1e-400], \"text\": \"d\"}\n"
      "{\"text\": null, \"id\": 1, \"id\": 2, \"te\\u0078t\": \"e\"}\n"
      "{\"x\": {\"text\": \"no\"}, \"text\": \"f\", \"title\": \"\\ud83d\"}\n"
      "{\"text\": \"g\", \"x\": " +
      deep + std::string(100'000, ']') +
      "}\n"
      "\xEF\xBB\xBF{\"text\": \"h\\ud83d\\ude00\\r\\n\"}\n";
  EXPECT_EQ(documents_of("a.jsonl", lines),
            (Texts{"a", "b", "c", "d", "e", "f", "g", "h\xF0\x9F\x98\x80\r\n"}));
}

TEST(TextSource, HalfASurrogatePairIsReplacedAndCounted) {
  const auto files = memory_files();
  write_file(
      *files, "a.jsonl",
      "{\"text\": \"one\"}\n{\"text\": \"x\\ud83dy\\ude00\"}\n{\"text\": \"\\ud83d\\u0041\"}\n");
  TextSource source(*files, "a.jsonl");
  Texts texts;
  for (TextDocument document; source.next(document);) texts.push_back(document.text);
  EXPECT_EQ(texts, (Texts{"one", "x\xEF\xBF\xBDy\xEF\xBF\xBD",
                          "\xEF\xBF\xBD"
                          "A"}));
  EXPECT_EQ(source.replacements().count, 3);
  EXPECT_EQ(source.replacements().line, 2);
  TextSource strict(*files, "a.jsonl", {.bad = BadDocuments::kSkip});
  TextDocument document;
  EXPECT_TRUE(strict.next(document));
  EXPECT_FALSE(strict.next(document));
  EXPECT_EQ(strict.skipped().count, 2);
}

TEST(TextSource, AMissingTextNamesTheMembersThatAreThere) {
  const auto refused = [](const std::string& line) {
    return message_of(ErrorKind::kData, [&] { documents_of("a.jsonl", line + "\n"); });
  };
  EXPECT_TRUE(
      refused("{\"Text\": \"a\", \"id\": {\"x\": 1}}")
          .starts_with("a.jsonl line 1 (byte 0): the object has no member \"text\" (there are "
                       "\"Text\", \"id\"); expected"));
  EXPECT_NE(
      refused("{\"a\\u001b\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9}")
          .find("(there are \"a?\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", ...)"),
      std::string::npos);
  EXPECT_NE(refused("{}").find("(it has none at all)"), std::string::npos);
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
           {"a.jsonl", 5, "a.jsonl line 2 (byte 16): \"text\" is null; expected a string"},
           {"a.txt", 1, "a.txt line 3 (byte 5): the document there is not UTF-8"}}) {
    TextSource source(*files, path,
                      {.bad = BadDocuments::kSkip, .documents = Documents::kBlankLine});
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
