// Texts become ids that the model knows, or are refused.
#include "ashlar/eval/judge.h"

#include <gtest/gtest.h>

#include "ashlar/eval/score.h"
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

// Choices that share a beginning, none, or all but the last token, cut at the front or not, against
// passes over each whole text.
TEST(Judge, ChoicesHaveTheLikelihoodsOfWholeTexts) {
  Log log([](std::string_view) {});
  const auto files = posix_files();
  for (const char* directory : {"hf_llama", "hf_qwen3_next"}) {
    const ModelSource source =
        find_model(*files, std::string(ASHLAR_FIXTURES) + "/" + directory, log);
    Runtime runtime(*files, source, DType::kF32,
                    {.max_positions = 40, .max_call = 40, .cached = true, .num_places = 2}, 2);
    const auto tokenizer = data::byte_tokenizer();
    const data::TextFiles text_files;
    const TextEncoding encoding{*tokenizer, text_files, source, 24};
    const std::string context = "a mason has 12";
    Task task{.kind = TaskKind::kArc, .questions = {}};
    const auto ask = [&](const std::string& before, const std::vector<std::string>& choices) {
      Question& question = task.questions.emplace_back();
      question.context = before, question.continuations = choices;
      question.lengths.assign(choices.size(), 1);
    };
    ask(context, {" b", " c", " bcd", " bcde fg"});
    ask("q", {" ", "pq"});
    ask(context, {" " + context, " b"});
    JudgedTask judged;
    {
      Decoder decoder(runtime.ctx, runtime.allocator, runtime.model, 24, 5, places_for(task));
      judged = judge_likelihoods(decoder, encoding, task, log);
    }
    for (size_t q = 0; q < task.questions.size(); ++q)
      for (size_t i = 0; i < task.questions[q].continuations.size(); ++i) {
        const ScoredIds text =
            encoding.pair(task.questions[q].context, task.questions[q].continuations[i]);
        const Scores scores = score(runtime.ctx, runtime.allocator, runtime.model, text.ids);
        double sum = 0.0;
        for (size_t t = text.first_scored(); t < text.ids.size(); ++t)
          sum += scores.logprobs[t - 1];
        EXPECT_NEAR(judged.rows[q].logprobs[i], sum, 1e-4) << directory << " " << q << " " << i;
      }
  }
}

}  // namespace
}  // namespace ashlar::eval
