// Input of an evaluation: the held-out part alone, and ids of the model's own tokenizer.
#include "ashlar/eval/input.h"

#include <gtest/gtest.h>

#include <array>

#include "ashlar/data/prepare.h"
#include "ashlar/eval/perplexity.h"
#include "ashlar/eval/score.h"
#include "tests/eval/small_model.h"
#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

// 50 ids below 100 and an end.
std::vector<int32_t> document(int32_t d) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 50; ++i) ids.push_back((7 * d + 3 * i) % 100);
  ids.push_back(1);
  return ids;
}

// "text": 20 documents, 1,020 tokens; without a sidecar.
void write_foreign(FileSystem& files) {
  Outputs outputs(files, {"text.bin", "text.idx"}, {});
  data::IndexedWriter writer(outputs, "text", data::TokenType::kU16);
  for (int32_t d = 0; d < 20; ++d) writer.add(document(d));
  writer.seal();
  outputs.publish();
}

InputSpec part(int64_t length, std::optional<double> fraction = {}) {
  return {.data = "text", .length = length, .validation_fraction = fraction};
}

TEST(Input, ASampleNeverReachesIntoTrainingText) {
  SmallModel small;
  write_foreign(*small.files);
  // 0.05 of 1,020 tokens is the last document.
  const auto open = [&](const InputSpec& spec) {
    return open_input(*small.files, small.source, spec);
  };
  for (const auto& [length, samples, longest] : std::vector<std::array<int64_t, 3>>{
           {1, 50, 1}, {10, 5, 10}, {15, 4, 15}, {50, 1, 50}, {51, 1, 50}, {kMaxTokens, 1, 50}}) {
    const Input input = open(part(length, 0.05));
    EXPECT_EQ(input.source.samples.range(), (data::TokenRange{969, 1020}));
    EXPECT_EQ(input.source.samples.size(), samples);
    EXPECT_EQ(input.source.samples.sequence_length(), longest);
  }
  EXPECT_EQ(open(part(10)).source.samples.range(), (data::TokenRange{1009, 1020})) << "0.01";
  InputSpec all = part(1019);
  all.all = true;
  EXPECT_EQ(open(all).source.samples.range(), (data::TokenRange{0, 1020}));
  for (const double fraction : {0.0, 1.0, -0.5})
    EXPECT_NE(message_of(ErrorKind::kConfig, [&] { open(part(5, fraction)); })
                  .find("--validation-fraction is"),
              std::string::npos);
  for (const int64_t length : {int64_t{0}, kMaxTokens + 1, INT64_MAX})
    EXPECT_NE(message_of(ErrorKind::kConfig, [&] { open(part(length)); }).find("--length is"),
              std::string::npos);
}

TEST(Input, TheTokenizerOfTheDataIsTheModels) {
  SmallModel small;
  small.source.spec.vocab_size = 260;
  Threads threads(1);
  write_text(*small.files, "text.txt",
             "one text\n\nanother text, somewhat longer than the first\n");
  const std::string input = "text.txt";
  data::prepare(*small.files, std::span(&input, 1), *data::byte_tokenizer(), "text", threads,
                small.log);
  InputSpec spec = part(4);
  spec.all = true;
  const auto open = [&] { return open_input(*small.files, small.source, spec); };
  EXPECT_EQ(open().doubt, "model holds no tokenizer");
  write_text(*small.files, "model/tokenizer.model", data::byte_tokenizer()->bytes());
  EXPECT_EQ(open().doubt, "");
  write_text(
      *small.files, "model/tokenizer.model",
      read_text(*posix_files(), std::string(ASHLAR_FIXTURES) + "/vectors/unigram_default.model"));
  const std::string message = message_of(ErrorKind::kConfig, open);
  for (const char* word : {"text was prepared with tokenizer", "(byte, 260 ids) but model has",
                           "(sentencepiece, ", "--any-tokenizer"})
    EXPECT_NE(message.find(word), std::string::npos) << message;
  spec.any_tokenizer = true;
  EXPECT_EQ(open().doubt, "");
  small.source.spec.vocab_size = 259;
  EXPECT_EQ(message_of(ErrorKind::kConfig, open),
            "text was prepared with a vocabulary of 260 ids but model has 259; expected at most as "
            "many");
}

TEST(Perplexity, IsTheMeanOfWhatScoreSaysAndPaddingCountsNothing) {
  SmallModel small;
  write_foreign(*small.files);
  Runtime runtime(*small.files, small.source, DType::kF32, {.max_positions = 70, .max_call = 140},
                  1);
  const Perplexity result =
      perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                 data::open_source(*small.files, "text", 70, Packing::kBestFit, 128, "--data"),
                 Counting::kDocumentsApart, 2, 0, small.log);
  EXPECT_EQ(result.num_samples, 20) << "one document of 51 tokens a row";
  EXPECT_EQ(result.num_targets, 20 * 50);
  double sum = 0;
  for (int32_t d = 0; d < 20; ++d)
    sum += score(runtime.ctx, runtime.allocator, runtime.model, document(d)).loss / 20;
  EXPECT_NEAR(result.loss, sum, 1e-5);
}

TEST(Perplexity, SaysWhatWasReadAndWhoseVocabularyIsTooSmall) {
  SmallModel small;
  write_foreign(*small.files);
  const Calls calls{.max_positions = 10, .max_call = 20};
  Runtime runtime(*small.files, small.source, DType::kF32, calls, 1);
  const auto run = [&](int64_t max_samples) {
    Input input = open_input(*small.files, small.source, part(10, 0.05));
    return perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                      std::move(input.source), Counting::kDocumentsApart, 2, max_samples,
                      small.log);
  };
  const Perplexity all = run(0), some = run(3), more = run(100);
  EXPECT_EQ(all.num_samples, 5);
  EXPECT_EQ(all.num_targets, 50);
  EXPECT_EQ(all.tokens, (data::TokenRange{969, 1020}));
  EXPECT_EQ(some.num_samples, 3);
  EXPECT_EQ(some.num_targets, 30);
  EXPECT_EQ(some.tokens, (data::TokenRange{969, 1000}));
  EXPECT_EQ(more.loss, all.loss);
  EXPECT_EQ(more.num_samples, 5);

  Outputs outputs(*small.files, {"large.bin", "large.idx"}, {});
  data::IndexedWriter writer(outputs, "large", data::TokenType::kU16);
  writer.add(std::vector<int32_t>{3, 128, 4, 5});
  writer.seal();
  outputs.publish();
  EXPECT_EQ(message_of(ErrorKind::kData,
                       [&] {
                         perplexity(runtime.ctx, runtime.allocator, runtime.model, "model",
                                    data::open_source(*small.files, "large", 3, Packing::kConcat,
                                                      128, "--data"),
                                    Counting::kDocumentsApart, 2, 0, small.log);
                       }),
            "large.bin: token 1 is 128; expected ids from 0 to 127 (the vocabulary of model has "
            "128)");
}

}  // namespace
}  // namespace ashlar::eval
