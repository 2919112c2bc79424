// Limits on both sides of their border, and refusals that no malformed file reaches.
#include <gtest/gtest.h>

#include "ashlar/data/content.h"
#include "ashlar/data/prepare.h"
#include "ashlar/data/sentencepiece.h"
#include "ashlar/data/sources.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

class Limits : public testing::Test {
 protected:
  Limits() {
    write_file(*files, "a.txt", std::string(200, 'x'));
    prepare_text("x");
  }
  void prepare_text(const std::string& prefix) {
    Threads threads(1);
    prepare(*files, inputs, *byte_tokenizer(), prefix, threads, log);
  }
  DataSpec spec_of(const std::string& prefix) {
    DataSpec spec;
    spec.train = {{prefix, 1.0}};
    spec.validation_fraction = 0;
    spec.sequence_length = 9;
    return spec;
  }
  void expect_said(const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  std::unique_ptr<FileSystem> files = memory_files();
  const std::vector<std::string> inputs{"a.txt"};
  Log log{[](std::string_view) {}};
};

TEST_F(Limits, AVocabularyAsLargeAsTheModels) {
  EXPECT_EQ(open_sources(*files, spec_of("x"), 260).train.size(), 1u);
}

TEST_F(Limits, EachCountOfTheSidecarMustAgree) {
  const Sidecar good = load_sidecar(*files, "x.json");
  for (const auto& change : std::vector<void (*)(Sidecar&)>{
           [](Sidecar& s) { ++s.documents; }, [](Sidecar& s) { ++s.tokens; },
           [](Sidecar& s) { s.token_type = "i32"; }}) {
    Sidecar bad = good;
    change(bad);
    write_file(*files, "x.json", format_sidecar(bad));
    expect_said(message_of(ErrorKind::kData, [&] { IndexedDataset(*files, "x"); }),
                "x.json: it tells of");
  }
}

TEST_F(Limits, NumbersOfTheSidecarFit63Bits) {
  std::string text = read_text(*files, "x.json");
  const std::string tokens = "\"tokens\": 201";
  ASSERT_NE(text.find(tokens), std::string::npos) << text;
  text.replace(text.find(tokens), tokens.size(), "\"tokens\": 18446744073709551615");
  expect_said(message_of(ErrorKind::kData, [&] { parse_sidecar(text, "x.json"); }),
              "tokens is 18446744073709551615; expected an integer from 1");
}

TEST_F(Limits, ADatasetsOwnTokenizerIsTheOneOfItsSidecar) {
  Sidecar other = load_sidecar(*files, "x.json");
  ++other.tokenizer_fingerprint;
  write_file(*files, "x.json", format_sidecar(other));
  expect_said(message_of(ErrorKind::kData, [&] { tokenizer_of_dataset(*files, "x"); }),
              "fingerprint is");
}

TEST_F(Limits, ValidationIsLessThanAll) {
  for (const double fraction : {-0.1, 1.0}) {
    DataSpec spec = spec_of("x");
    spec.validation_fraction = fraction;
    expect_said(message_of(ErrorKind::kConfig, [&] { open_sources(*files, spec, 260); }),
                "data.validation_fraction is");
  }
}

TEST_F(Limits, ATrainingSampleIsLeftBesideValidation) {
  write_counting(*files, "least", {20});
  write_counting(*files, "less", {19});
  DataSpec spec = spec_of("least");
  spec.validation_fraction = 0.01;
  EXPECT_EQ(open_sources(*files, spec, kTestVocab).validation[0].samples.size(), 1);
  spec.train = {{"less", 1.0}};
  expect_said(message_of(ErrorKind::kConfig, [&] { open_sources(*files, spec, kTestVocab); }),
              "too few");
}

TEST_F(Limits, InputsAreRegularFiles) {
  const std::vector<std::string> directory{"texts"};
  files->make_directories("texts");
  Threads threads(1);
  expect_said(message_of(ErrorKind::kData,
                         [&] { prepare(*files, directory, *byte_tokenizer(), "y", threads, log); }),
              "it is a directory");
}

TEST_F(Limits, DictzipIsGzip) {
  write_file(*files, "a.dict.dz", "plain");
  expect_said(message_of(ErrorKind::kData, [&] { TextSource(*files, "a.dict.dz"); }), "not gzip's");
}

TEST_F(Limits, AStateStandsAtAMicroBatchOfItsStep) {
  LoaderOptions options;
  options.micro_batch = 2;
  options.global_batch = 4;
  options.vocab_size = kTestVocab;
  Loader loader({source_of(*files, "x", 9)}, options);
  LoaderState state = loader.state();
  for (const int64_t position : {1, 3, 4}) {
    state.position = position;
    expect_said(message_of(ErrorKind::kConfig, [&] { loader.restore(state); }),
                "inside a step of 4");
  }
  state.position = 2;
  EXPECT_TRUE(loader.restore(state));
}

TEST_F(Limits, OneByteInFourIsZero) {
  const std::string text(12, 'x');
  const auto refusal = [&](size_t zeros) {
    return content_of("a.txt", text + std::string(zeros, '\0'), true, InputFormat::kDetect).refusal;
  };
  EXPECT_EQ(content_of("a.txt", std::string("a\0b\n", 4), true, InputFormat::kDetect).refusal, "");
  EXPECT_EQ(refusal(3), "");
  EXPECT_NE(refusal(4), "");
}

// The library would drop longer lines without a word.
TEST_F(Limits, LongLinesAreLearnedFrom) {
  std::string line;
  while (line.size() < 4'000) line += "one stone upon another ";  // a line is cut at 4,096
  write_file(*files, "a.txt", line);
  TokenizerTraining training;
  training.vocab_size = 285;
  const auto tokenizer = parse_tokenizer(train_sentencepiece(*files, inputs, training, log), "t");
  EXPECT_LT(tokenizer->encode("another stone").size(), 7u) << "words are pieces";
}

}  // namespace
}  // namespace ashlar::data
