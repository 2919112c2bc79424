#include "ashlar/data/verify.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ashlar/data/prepare.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

class Verify : public testing::Test {
 protected:
  Verify() { prepare_text("x", 3000); }
  void prepare_text(const std::string& prefix, size_t num_bytes) {
    const std::vector<std::string> inputs{prefix + ".txt"};
    write_file(*files, inputs[0], std::string(num_bytes, 'a') + "\n\nmore\n");
    Threads threads(1);
    prepare(*files, inputs, *byte_tokenizer(), prefix, threads, log,
            {.text = {.documents = Documents::kBlankLine}});
  }
  // Turns one bit, so that the id stays in the vocabulary.
  void damage(const std::string& path, size_t byte) {
    std::string content = read_text(*files, path);
    content.at(byte) = static_cast<char>(content[byte] ^ 1);
    write_file(*files, path, content);
  }
  std::string finding(const std::string& prefix = "x") {
    return verify_dataset(*files, prefix, log).finding;
  }
  Sources sources_of(const std::string& train, const std::string& validation = "") {
    DataSpec spec;
    spec.train = {{train, 1.0}};
    if (!validation.empty()) spec.validation = {{validation, 1.0}};
    spec.sequence_length = 8;
    return open_sources(*files, spec, kTestVocab);
  }
  std::optional<Error> background(const Sources& sources, int64_t expected_bytes) {
    BackgroundVerify verify(*files, sources);
    EXPECT_EQ(verify.bytes_total(), expected_bytes);
    auto failure = verify.failure(60);
    EXPECT_TRUE(verify.done());
    if (!failure) {
      EXPECT_EQ(verify.bytes_done(), expected_bytes);
    }
    return failure;
  }
  std::unique_ptr<FileSystem> files = memory_files();
  Log log{[](std::string_view) {}};
};

TEST_F(Verify, GoodDatasetsAreGood) {
  const DatasetReport report = verify_dataset(*files, "x", log);
  EXPECT_EQ(report.finding, "");
  EXPECT_EQ(report.documents, 2);
  EXPECT_EQ(report.tokens, 3006);
  EXPECT_EQ(report.bytes, 6012);
  EXPECT_TRUE(report.has_checksum);
  write_counting(*files, "foreign", {5});
  EXPECT_EQ(finding("foreign"), "");
  EXPECT_FALSE(verify_dataset(*files, "foreign", log).has_checksum);
}

TEST_F(Verify, EveryByteOfTheTokensCounts) {
  prepare_text("large", 1'500'000);  // several chunks
  EXPECT_EQ(finding("large"), "");
  const size_t size = read_text(*files, "large.bin").size();
  ASSERT_GT(size, size_t{2} << 20);
  for (const size_t byte : {size_t{0}, (size_t{1} << 20) - 1, size_t{1} << 20, size - 1}) {
    damage("large.bin", byte);
    EXPECT_NE(finding("large").find("large.bin: checksum is"), std::string::npos) << byte;
    damage("large.bin", byte);
  }
  EXPECT_EQ(finding("large"), "");
}

TEST_F(Verify, FindsDamageOfTheOtherFiles) {
  damage("x.tokenizer.model", 0);
  EXPECT_NE(finding().find("x.tokenizer.model"), std::string::npos) << finding();
  files->remove("x.tokenizer.model");
  EXPECT_NE(finding().find("x.tokenizer.model: there is no"), std::string::npos) << finding();
  damage("x.json", 0);
  EXPECT_NE(finding().find("x.json"), std::string::npos) << finding();
  damage("x.idx", 0);
  EXPECT_NE(finding().find("x.idx"), std::string::npos) << finding();
  files->remove("x.idx");
  EXPECT_NE(finding().find("x.idx: there is no"), std::string::npos) << finding();
}

TEST_F(Verify, WhatIsNotThereIsAnError) {
  EXPECT_NE(message_of(ErrorKind::kData, [&] { finding("gone"); }).find("gone: there is no"),
            std::string::npos);
}

TEST_F(Verify, TheBackgroundReadsEveryDatasetOnce) {
  prepare_text("v", 100);
  write_counting(*files, "foreign", {50});
  EXPECT_FALSE(background(sources_of("x"), 6012)) << "training and validation parts are one file";
  EXPECT_FALSE(background(sources_of("x", "v"), 6012 + 212));
  EXPECT_FALSE(background(sources_of("foreign"), 0));
  damage("v.bin", 200);
  const auto failure = background(sources_of("x", "v"), 6012 + 212);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind(), ErrorKind::kData);
  EXPECT_NE(std::string(failure->what()).find("v.bin: checksum is"), std::string::npos);
}

TEST_F(Verify, TheBackgroundTellsOfFilesThatCannotBeRead) {
  const Sources sources = sources_of("x");
  files->remove("x.bin");
  const auto failure = background(sources, 6012);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind(), ErrorKind::kStorage);
}

TEST_F(Verify, TheBackgroundKeepsItsPaceAndStopsAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  {
    BackgroundVerify verify(*files, sources_of("x"), 1.0);  // would last 100 minutes
    EXPECT_FALSE(verify.failure(0.05));
    EXPECT_FALSE(verify.done());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
}

TEST_F(Verify, HelpsWithWhatIsNoPrefix) {
  EXPECT_NE(message_of(ErrorKind::kData, [&] { verify_dataset(*files, "x.idx", log); })
                .find("; there is x.idx: give x without .idx"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::data
