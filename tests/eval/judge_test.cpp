// Texts become ids that the model knows, or are refused.
#include "ashlar/eval/judge.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

TEST(Judge, IdsOutsideTheVocabularyAreRefused) {
  Log log([](std::string_view) {});
  const auto files = posix_files();
  const ModelSource source =
      find_model(*files, std::string(ASHLAR_FIXTURES) + "/hf_llama", log);  // of 120 ids
  const auto tokenizer = data::byte_tokenizer();
  const data::TextFiles text_files;
  const TextEncoding encoding{*tokenizer, text_files, source, 64};
  const std::string known = "ab", other = "\u00e9";
  ASSERT_GE(tokenizer->encode(other).front(), source.spec.vocab_size);
  EXPECT_EQ(encoding.pair(known, known).num_scored, 2);
  EXPECT_EQ(encoding.prompt(known, 1).size(), 2u);
  EXPECT_EQ(encoding.windows(known, 8).size(), 1u);
  const auto expect_refused = [](const auto& encode) {
    const std::string message = message_of(ErrorKind::kData, encode);
    EXPECT_NE(message.find("outside the vocabulary"), std::string::npos) << message;
  };
  expect_refused([&] { encoding.pair(known, other); });
  expect_refused([&] { encoding.prompt(other, 1); });
  expect_refused([&] { encoding.windows(other, 8); });
}

}  // namespace
}  // namespace ashlar::eval
