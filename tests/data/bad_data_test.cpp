// Every malformed file of tests/fixtures/bad/data gives one line that names the file, the place and
// the value, and what was expected.  make.py there says how each was made.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ashlar/data/prepare.h"
#include "ashlar/data/text_source.h"
#include "tests/data/support.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::data {
namespace {

const std::string kBad = ASHLAR_FIXTURES "/bad/data/";

struct BadFile {
  std::string name;
  std::vector<std::string> words;  // all of them stand in the message
};

void PrintTo(const BadFile& c, std::ostream* out) {
  *out << c.name;
}

void expect_message(const BadFile& c, const std::string& message) {
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 400 + kBad.size() * 3) << message;
  EXPECT_NE(message.find(c.name), std::string::npos) << message;
  for (const std::string& word : c.words)
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
}

const std::vector<BadFile> kDatasets = {
    {"idx_cut", {".idx", "60 bytes", "expected 82"}},
    {"idx_cut_header", {".idx", "20 bytes", "34"}},
    {"idx_empty", {".idx", "empty"}},
    {"idx_magic", {".idx", "bytes 0 to 8", "4d4d494458585800", "4d4d49444944580000"}},
    {"idx_version", {".idx", "byte 9", "is 2", "expected 1"}},
    {"idx_float", {".idx", "byte 17", "is 6", "expected 1 (u8)"}},
    {"idx_type", {".idx", "is 77"}},
    {"idx_count_overflow", {".idx", "byte 18", "2305843009213693952", "2^56"}},
    {"idx_documents_overflow", {".idx", "byte 26", "18446744073709551615"}},
    {"idx_count", {".idx", "82 bytes", "expected 94", "3 sequences"}},
    {"idx_no_sequence", {".idx", "sequence count", "is 0"}},
    {"idx_no_token", {".idx", "0 tokens"}},
    {"idx_offset_order", {".idx", "offsets[1] is 10", "expected 6"}},
    {"idx_offset_gap", {".idx", "offsets[1] is 8", "expected 6"}},
    {"idx_offset_first", {".idx", "offsets[0] is 2", "expected 0"}},
    {"idx_length", {".idx", "lengths[1] is -2", "expected 0 or more"}},
    {"idx_documents_first", {".idx", "documents[0] is 1", "expected 0"}},
    {"idx_documents_order", {".idx", "documents[2] is 1", "expected 2"}},
    {"idx_documents_last", {".idx", "documents[2]", "is 1", "expected 2"}},
    {"idx_absent", {".idx", "no such file", "ashlar data prepare"}},
    {"bin_short", {".bin", "8 bytes", "expected 10"}},
    {"bin_long", {".bin", "12 bytes", "expected 10"}},
    {"bin_absent", {".bin", "no such file"}},
    {"bin_empty", {".bin", "empty"}},
    {"id_large", {".bin", "token 3 is 60000", "0 to 259"}},
    {"id_negative", {".bin", "token 3 is -7", "0 to 259"}},
    {"sidecar_json", {".json", "not valid JSON at byte"}},
    {"sidecar_format", {".json", "format is \"parquet\"", "ashlar-dataset"}},
    {"sidecar_version", {".json", "version is 9", "1"}},
    {"sidecar_member", {".json", "key 'tokens' is missing"}},
    {"sidecar_counts", {".json", "3 documents", "2 documents"}},
    {"sidecar_eos", {".json", "eos_id is 260", "0 to 259"}},
    {"sidecar_fingerprint", {".json", "\"12zz\"", "16 lower-case hex digits"}},
};

class BadDataset : public testing::TestWithParam<BadFile> {};

TEST_P(BadDataset, IsNamed) {
  const auto files = posix_files();
  expect_message(GetParam(), message_of(ErrorKind::kData, [&] {
                   const IndexedDataset dataset(*files, kBad + GetParam().name);
                   std::vector<int32_t> all(static_cast<size_t>(dataset.index().num_tokens()));
                   dataset.read(0, 260, all);
                 }));
}

std::string name_of_case(const testing::TestParamInfo<BadFile>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, BadDataset, testing::ValuesIn(kDatasets), name_of_case);

const std::vector<BadFile> kBadTexts = {
    {"not_json.jsonl", {"line 3 (byte 45)", "not valid JSON at byte"}},
    {"no_text.jsonl", {"line 3 (byte 45)", "no member \"text\""}},
    {"text_number.jsonl", {"line 3 (byte 45)", "\"text\" is a number", "string"}},
    {"array.jsonl", {"line 3 (byte 45)", "array", "object"}},
    {"not_utf8.jsonl", {"line 3 (byte 45)", "not valid JSON at byte"}},
    {"latin1.txt", {"line 1 (byte 0)", "0xe9", "UTF-8"}},
    {"blank.txt", {"no document"}},
    {"no_bytes.txt", {"no document"}},
    {"not_gzip.txt.gz", {"0x706c", "0x1f8b"}},
    {"cut.txt.gz", {"breaks off at byte"}},
    {"damaged.txt.gz", {"damaged near byte"}},
    {"checksum.txt.gz", {"damaged near byte", "incorrect data check"}},
    {"tail.txt.gz", {"damaged near byte", "incorrect header check"}},
    {"absent.txt", {"no such file"}},
};

class BadText : public testing::TestWithParam<BadFile> {};

TEST_P(BadText, IsNamedAndLeavesNothing) {
  const testing_support::TemporaryDirectory directory;
  const std::string out = directory / "out";
  const auto files = posix_files();
  Log log([](std::string_view) {});
  Threads threads(1);
  const std::vector<std::string> inputs{kBad + GetParam().name};
  expect_message(GetParam(), message_of(ErrorKind::kData, [&] {
                   prepare(*files, inputs, *byte_tokenizer(), out + "/x", threads, log);
                 }));
  if (std::filesystem::exists(out)) {
    EXPECT_TRUE(std::filesystem::is_empty(out));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, BadText, testing::ValuesIn(kBadTexts), name_of_case);

const std::vector<BadFile> kModels = {
    {"noise.model", {"500 bytes are not a sentencepiece model"}},
    {"empty.model", {"0 bytes are not a sentencepiece model"}},
    {"cut.model", {"3000 bytes are not a sentencepiece model"}},
    {"nul_piece.model", {"5612 bytes are not a sentencepiece model"}},
    {"no_eos.model", {"eos id is -1", "expected both"}},
    {"absent.model", {"no such tokenizer file"}},
};

class BadModel : public testing::TestWithParam<BadFile> {};

TEST_P(BadModel, IsNamed) {
  const auto files = posix_files();
  testing::internal::CaptureStderr();
  const std::string message =
      message_of(ErrorKind::kData, [&] { load_tokenizer(*files, kBad + GetParam().name); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the library must not print";
  expect_message(GetParam(), message);
}

INSTANTIATE_TEST_SUITE_P(Files, BadModel, testing::ValuesIn(kModels), name_of_case);

TEST(BadData, EveryFileThereIsUsed) {
  std::set<std::string> named{"make"};
  for (const auto* cases : {&kDatasets, &kBadTexts, &kModels})
    for (const BadFile& c : *cases) named.insert(c.name.substr(0, c.name.find('.')));
  for (const auto& entry : std::filesystem::directory_iterator(kBad)) {
    const std::string file = entry.path().filename();
    EXPECT_TRUE(named.contains(file.substr(0, file.find('.')))) << file;
  }
}

}  // namespace
}  // namespace ashlar::data
