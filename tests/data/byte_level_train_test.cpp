// Learned tokenizers against the tokenizers library 0.23.3, which learned
// tests/fixtures/tokenizers/learned/expected.json from the texts beside it
// (scripts/peers/tokenizer_forms.py: learned()).
#include "ashlar/data/byte_level_train.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/json.h"
#include "ashlar/core/rng.h"
#include "ashlar/data/tokenizer.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

const std::string kLearned = ASHLAR_FIXTURES "/tokenizers/learned/";

std::string learned_from(FileSystem& files, const std::string& input, int64_t vocab_size,
                         int num_threads) {
  Threads threads(num_threads);
  Log log([](std::string_view) {});
  const std::vector<std::string> inputs{input};
  return train_byte_level(files, inputs, vocab_size, {}, threads, log);
}

std::vector<std::string> texts_of_library(FileSystem& files) {
  std::vector<std::string> texts;
  TextSource source(files, kLearned + "texts.jsonl");
  for (TextDocument document; source.next(document);) texts.push_back(document.text);
  return texts;
}

TEST(ByteLevelTraining, LearnsAsTheLibrary) {
  const auto files = posix_files();
  const Json expected = Json::parse(read_text(*files, kLearned + "expected.json", 1 << 20));
  const std::string bytes = learned_from(*files, kLearned + "texts.jsonl", 460, 3);
  const Json model = Json::parse(bytes).at("model");
  EXPECT_EQ(model.at("vocab"), expected.at("vocab"));
  EXPECT_EQ(model.at("merges"), expected.at("merges"));

  const auto tokenizer = parse_tokenizer(bytes, "learned");
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  const std::vector<std::string> texts = texts_of_library(*files);
  ASSERT_EQ(texts.size(), expected.at("ids").size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int32_t> ids = tokenizer->encode(texts[i]);
    EXPECT_EQ(Json(ids), expected.at("ids")[i]) << texts[i];
    EXPECT_EQ(tokenizer->decode(ids, /*skip_special=*/false), texts[i]);
  }
}

TEST(ByteLevelTraining, IsTheSameOnAnyNumberOfThreads) {
  const auto files = posix_files();
  EXPECT_EQ(learned_from(*files, kLearned + "texts.jsonl", 400, 1),
            learned_from(*files, kLearned + "texts.jsonl", 400, 4));
}

TEST(ByteLevelTraining, CutsLargeFilesWhereWordsAreTheSame) {
  constexpr const char* kParts[] = {"stone", " wall", "'s",  "'",          "12",
                                    "\n",    "\n\n",  " \n", "  ",         "! ",
                                    "\t",    " a",    "b",   "na\u00EFve", "\u77F3\u58C1"};
  std::string text;
  for (uint64_t i = 0; text.size() < 3 * size_t(kPartBytes); ++i)
    text += kParts[splitmix64(i) % std::size(kParts)];
  text += "end";
  const auto files = memory_files();
  write_file(*files, "file.txt", text);
  write_file(*files, "row.jsonl", Json{{"text", text}}.dump() + "\n");
  EXPECT_EQ(learned_from(*files, "file.txt", 600, 2), learned_from(*files, "row.jsonl", 600, 2));
}

TEST(ByteLevelTraining, TellsTheLargestVocabulary) {
  const auto files = memory_files();
  write_file(*files, "words.txt", "wall walls a wall\n");
  // The library learns six merges: al, wal, wall, " wall", " a" and " walls".
  const std::string message =
      message_of(ErrorKind::kConfig, [&] { learned_from(*files, "words.txt", 400, 1); });
  EXPECT_NE(message.find("give --vocab 266 or less"), std::string::npos) << message;
  const Json model = Json::parse(learned_from(*files, "words.txt", 266, 1)).at("model");
  EXPECT_EQ(model.at("merges").size(), 6u);
}

TEST(ByteLevelTraining, RefusesSizesWithoutALearnedToken) {
  const auto files = memory_files();
  write_file(*files, "words.txt", "wall walls\n");
  for (const int64_t vocab_size : {int64_t{0}, int64_t{260}, int64_t{1} << 40}) {
    const std::string message =
        message_of(ErrorKind::kConfig, [&] { learned_from(*files, "words.txt", vocab_size, 1); });
    EXPECT_NE(message.find("expected 261 to 16777216"), std::string::npos) << message;
  }
}

TEST(ByteLevelTraining, CutsLongWords) {
  const auto files = memory_files();
  const std::string word(4096, 'a');
  write_file(*files, "long.txt", word + word + "ab");
  write_file(*files, "short.jsonl",
             Json{{"text", word}}.dump() + "\n" + Json{{"text", word}}.dump() + "\n" +
                 Json{{"text", "ab"}}.dump() + "\n");
  EXPECT_EQ(learned_from(*files, "long.txt", 270, 1), learned_from(*files, "short.jsonl", 270, 1));
}

TEST(ByteLevelTraining, WarnsOfRepairs) {
  const auto files = memory_files();
  write_file(*files, "words.txt", "wall \xFF wall\n");
  std::string told;
  Log log([&](std::string_view line) { told += line; });
  Threads threads(1);
  const std::vector<std::string> inputs{"words.txt"};
  train_byte_level(*files, inputs, 262, {}, threads, log);
  EXPECT_NE(told.find("words.txt: 1 byte sequences are not UTF-8 and became U+FFFD"),
            std::string::npos)
      << told;
}

TEST(ByteLevelTraining, WantsText) {
  const auto files = memory_files();
  write_file(*files, "empty.txt", " \n");
  const std::string message =
      message_of(ErrorKind::kData, [&] { learned_from(*files, "empty.txt", 300, 1); });
  EXPECT_NE(message.find("no text in it"), std::string::npos) << message;
}

}  // namespace
}  // namespace ashlar::data
