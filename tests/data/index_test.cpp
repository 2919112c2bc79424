#include "ashlar/data/index.h"

#include <gtest/gtest.h>

#include "tests/data/support.h"
#include "tests/support/bytes.h"

namespace ashlar::data {
namespace {

using testing_support::bytes_of;
using testing_support::hex;

constexpr const char* kTwoDocuments =
    "4d4d4944494458000001000000000000000802000000000000000300000000000000030000000200000000000000"
    "000000000600000000000000000000000000000001000000000000000200000000000000";

TEST(DatasetIndex, WrittenAsMegatronWritesIt) {
  const std::vector<int32_t> lengths{3, 2};
  const std::string idx = format_index(TokenType::kU16, lengths);
  EXPECT_EQ(idx.size(), 82u);
  EXPECT_EQ(hex(idx), kTwoDocuments);

  const auto files = memory_files();
  write_documents(*files, "two", {{1, 2, 3}, {4, 5}}, 100);
  EXPECT_EQ(hex(read_text(*files, "two.idx")), kTwoDocuments);
  EXPECT_EQ(hex(read_text(*files, "two.bin")), "01000200030004000500");
}

TEST(DatasetIndex, ReadsWhatItWrote) {
  const std::vector<int32_t> lengths{3, 0, 2, 7};
  const std::string idx = format_index(TokenType::kI32, lengths);
  const DatasetIndex index = parse_index(bytes_of(idx), "x.idx");
  EXPECT_EQ(index.type(), TokenType::kI32);
  EXPECT_EQ(index.num_sequences(), 4);
  EXPECT_EQ(index.num_documents(), 4);
  EXPECT_EQ(index.num_tokens(), 12);
  const std::vector<int64_t> starts{0, 3, 3, 5, 12};
  for (int64_t d = 0; d <= 4; ++d)
    EXPECT_EQ(index.document_start(d), starts[static_cast<size_t>(d)]);
  EXPECT_EQ(index.locate(2), (TokenPosition{0, 2}));
  EXPECT_EQ(index.locate(3), (TokenPosition{2, 0})) << "an empty document holds no token";
  EXPECT_EQ(index.locate(11), (TokenPosition{3, 6}));
}

TEST(DatasetIndex, UnalignedBytesModesAndSeveralSequencesADocument) {
  const std::vector<int32_t> lengths{3, 2, 4};
  std::string idx = format_index(TokenType::kU16, lengths);
  // Two documents of one and two sequences: 4 document entries become 3.
  idx.erase(idx.size() - 32);
  idx[26] = 3;
  for (const char first : {0, 1, 3}) idx += std::string(1, first) + std::string(7, '\0');
  const std::string with_modes = idx + std::string(3, '\1');
  for (const std::string& content : {idx, with_modes})
    for (size_t shift = 0; shift < 8; ++shift) {
      const std::string shifted = std::string(shift, 'x') + content;
      const DatasetIndex index = parse_index(bytes_of(shifted).subspan(shift), "x.idx");
      EXPECT_EQ(index.num_documents(), 2);
      EXPECT_EQ(index.document_start(1), 3);
      EXPECT_EQ(index.document_length(1), 6);
      EXPECT_EQ(index.locate(8), (TokenPosition{1, 5}));
    }
}

TEST(DatasetIndex, EveryCutAndEveryAppendedByteIsAnError) {
  const std::vector<int32_t> lengths{3, 2, 4};
  const std::string idx = format_index(TokenType::kU16, lengths);
  for (size_t size = 0; size < idx.size(); ++size)
    EXPECT_THROW(parse_index(bytes_of(idx).first(size), "x.idx"), Error) << size;
  EXPECT_THROW(parse_index(bytes_of(idx + "x"), "x.idx"), Error);
}

TEST(DatasetIndex, TypeOfAVocabulary) {
  EXPECT_EQ(token_type_for(260), TokenType::kU16);
  EXPECT_EQ(token_type_for(65'499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65'500), TokenType::kI32);
}

// A document whose length does not fit 32 bits is several sequences.
TEST(DatasetIndex, DocumentsOfSeveralSequences) {
  const std::vector<int32_t> lengths{3, 2, 4, 1};
  const std::vector<int64_t> continued{1, 3};
  const std::string bytes = format_index(TokenType::kU16, lengths, continued);
  const DatasetIndex index = parse_index(bytes_of(bytes), "x.idx");
  EXPECT_EQ(index.num_sequences(), 4);
  EXPECT_EQ(index.num_documents(), 2);
  EXPECT_EQ(index.num_tokens(), 10);
  EXPECT_EQ(index.document_length(0), 5);
  EXPECT_EQ(index.document_start(1), 5);
  EXPECT_EQ(index.locate(4), (TokenPosition{0, 4}));
  EXPECT_EQ(index.locate(9), (TokenPosition{1, 4}));
}

class Types : public testing::TestWithParam<TokenType> {};

TEST_P(Types, TokensKeepTheirValues) {
  const auto files = memory_files();
  const std::vector<int32_t> tokens{0, 1, 100, 127};
  {
    Outputs outputs(*files, {"x.bin", "x.idx"}, {});
    IndexedWriter writer(outputs, "x", GetParam());
    writer.add(tokens);
    writer.seal();
    outputs.publish();
  }
  const IndexedDataset dataset(*files, "x");
  EXPECT_EQ(dataset.index().type(), GetParam());
  std::vector<int32_t> read(3);
  dataset.read(1, 128, read);
  EXPECT_EQ(read, (std::vector<int32_t>{1, 100, 127}));
  EXPECT_EQ(
      message_of(ErrorKind::kData, [&] { dataset.read(1, 127, read); }),
      "x.bin: token 3 is 127; expected ids from 0 to 126 (the vocabulary of the model has 127)");
}

INSTANTIATE_TEST_SUITE_P(All, Types,
                         testing::Values(TokenType::kU8, TokenType::kI8, TokenType::kI16,
                                         TokenType::kU16, TokenType::kI32, TokenType::kI64));

TEST(IndexedWriter, WritesMoreThanItsBuffer) {
  const auto files = memory_files();
  std::vector<int64_t> lengths(700, 1000);
  write_counting(*files, "big", lengths);
  const IndexedDataset dataset(*files, "big");
  std::vector<int32_t> read(700'000);
  dataset.read(0, kTestVocab, read);
  for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], static_cast<int32_t>(i));
}

// Paths that people give in place of a prefix, and datasets of other programs.
TEST(IndexedDataset, HelpsWithWhatIsNoPrefix) {
  const auto files = memory_files();
  write_counting(*files, "x", {3, 2});
  write_file(*files, "nano.bin", "\5\0\6\0\7\0");
  const uint32_t llm_c[] = {20240520, 1, 55, 0};
  write_file(*files, "llmc.bin", {reinterpret_cast<const char*>(llm_c), sizeof llm_c});
  write_file(*files, "a.npy", "\x93NUMPY\1\0");
  write_file(*files, "a.txt", "text");
  write_file(*files, "short.bin", "\5");
  write_file(*files, "old.idx", std::string("TNTIDX\0\0", 8) + std::string(60, '\0'));
  for (const auto& [prefix, word] : std::vector<std::pair<std::string, std::string>>{
           {"x.idx", "; there is x.idx: give x without .idx"},
           {"x.bin", "; there is x.idx: give x without .bin"},
           {"nano", "; nano.bin is a file of token ids alone, as nanoGPT writes: "},
           {"nano.bin", "; nano.bin is a file of token ids alone"},
           {"short", "; short.bin is a file of token ids alone"},
           {"llmc", "; llmc.bin is a token file of llm.c: "},
           {"llmc.bin", "; llmc.bin is a token file of llm.c: "},
           {"a.npy", "; a.npy is a NumPy array: "},
           {"a.txt", "; a.txt is a file: "},
           {"old", "old.idx: it is an index of Megatron's old cached or lazy datasets (TNTIDX)"},
           {"gone", "expected the --out of `ashlar data prepare`"}}) {
    const std::string message =
        message_of(ErrorKind::kData, [&] { IndexedDataset(*files, prefix); });
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
}

TEST(IndexedDataset, FingerprintTellsDatasetsApart) {
  const auto files = memory_files();
  write_counting(*files, "a", {3, 2});
  write_counting(*files, "b", {2, 3});
  write_counting(*files, "c", {3, 2});
  EXPECT_NE(IndexedDataset(*files, "a").fingerprint(), IndexedDataset(*files, "b").fingerprint());
  EXPECT_EQ(IndexedDataset(*files, "a").fingerprint(), IndexedDataset(*files, "c").fingerprint());
}

}  // namespace
}  // namespace ashlar::data
