// Rows of published data sets become the prompts and choices that lm-evaluation-harness 0.4 makes
// of them.
#include "ashlar/eval/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

Question first_of(std::string line, TaskKind kind) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  const Task task = parse_task(line + "\n", "f");
  EXPECT_EQ(task.kind, kind);
  EXPECT_EQ(task.questions.size(), 1u);
  return task.questions.at(0);
}

TEST(Tasks, HellaSwag) {
  const Question found = first_of(
      R"({"ind": 4, "activity_label": "Roof shingle removal", "ctx_a": "A man is sitting on a roof.",
          "ctx_b": "he [header] STARTS", "endings": ["is using wrap. [title] Wrap it  well.",
          " pulls [substeps] up\u00e9", "c", "d"], "label": "1"})",
      TaskKind::kHellaSwag);
  EXPECT_EQ(found.context, "Roof shingle removal: A man is sitting on a roof. He starts");
  EXPECT_EQ(found.continuations, (std::vector<std::string>{" is using wrap.. Wrap it well.",
                                                           " pulls up\u00e9", " c", " d"}));
  EXPECT_EQ(found.lengths, (std::vector<int64_t>{29, 9, 1, 1}));
  EXPECT_EQ(found.answer, 1);
}

TEST(Tasks, Arc) {
  const Question found = first_of(
      R"({"id": "x", "question": "Which?", "choices": {"text": ["dry", "wet"], "label": ["1", "2"]},
          "answerKey": "2"})",
      TaskKind::kArc);
  EXPECT_EQ(found.context, "Question: Which?\nAnswer:");
  EXPECT_EQ(found.continuations, (std::vector<std::string>{" dry", " wet"}));
  EXPECT_EQ(found.answer, 1);
}

TEST(Tasks, Mmlu) {
  const Question found = first_of(
      R"({"question": " 1 + 1? ", "subject": "abstract_algebra", "choices": ["0", "2", "4", "8"],
          "answer": 1})",
      TaskKind::kMmlu);
  EXPECT_EQ(found.context,
            "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
            "1 + 1?\nA. 0\nB. 2\nC. 4\nD. 8\nAnswer:");
  EXPECT_EQ(found.continuations, (std::vector<std::string>{" A", " B", " C", " D"}));
  EXPECT_EQ(found.answer, 1);
}

TEST(Tasks, Lambada) {
  const Question found = first_of(R"({"text": "in my palm is a clear stone"})", TaskKind::kLambada);
  EXPECT_EQ(found.context, "in my palm is a clear");
  EXPECT_EQ(found.continuations, std::vector<std::string>{" stone"});
}

TEST(Tasks, Gsm8k) {
  const Question found =
      first_of(R"({"question": "How many?", "answer": "2*3=6\n#### 6"})", TaskKind::kGsm8k);
  EXPECT_EQ(found.context, "Question: How many?\nAnswer:");
  EXPECT_EQ(found.target, "2*3=6\n#### 6");
  EXPECT_TRUE(found.continuations.empty());
}

TEST(Tasks, RowsThatAreNoneAreNamed) {
  for (
      const auto& [lines, named] : std::vector<std::pair<std::string, std::string>>{
          {"", "f: it holds no question"},
          {"\n{\n", "f line 2: not valid JSON"},
          {"[]", "f line 1: found []; expected an object"},
          {R"({"prompt": "a"})", "f line 1: no row of a known task"},
          {R"({"question": "a", "answer": "b"}
{"question": "a"})",
           "f line 2: key 'answer' is missing"},
          {R"({"text": "word"})", "expected words with single spaces"},
          {R"({"text": "two "})", "expected words with single spaces"},
          {R"({"question": "q", "choices": ["a", "b"], "answer": 2})", "choice 2 of 2"},
          {R"({"question": "q", "choices": ["a"], "answer": 0})", "expected at least 2"},
          {R"({"question": "q", "choices": {"text": ["a", "b"], "label": ["A"]}, "answerKey": "A"})",
           "1 labels for 2 choices"},
          {R"({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, )"
           R"("answerKey": "C"})",
           "answerKey is no label"}}) {
    const std::string message = message_of(ErrorKind::kData, [&] { parse_task(lines, "f"); });
    EXPECT_NE(message.find(named), std::string::npos) << message;
  }
}

// The contexts of lm-eval with its sampler first_n.
TEST(Tasks, ShotsComeBeforeTheQuestion) {
  const auto context = [](const std::string& question, const std::string& examples, int64_t shots) {
    Task task = parse_task(question, "f");
    add_shots(task, parse_task(examples, "shots"), shots, "shots");
    return task.questions[0].context;
  };
  const auto math = [](const std::string& question, const std::string& answer) {
    return R"({"question": ")" + question + R"(", "answer": ")" + answer + "\"}\n";
  };
  const std::string sums = math("1?", "#### 1") + math("2?", "#### 2") + math("3?", "#### 3");
  EXPECT_EQ(context(math("2?", "#### 2"), sums, 2),
            "Question: 1?\nAnswer: #### 1\n\nQuestion: 3?\nAnswer: #### 3\n\nQuestion: "
            "2?\nAnswer:");
  EXPECT_EQ(context(R"({"text": "a b c"})", R"({"text": "x y"})", 1), "x  y\n\na b");
  const auto of_subject = [](const std::string& question, const std::string& subject) {
    return R"({"question": ")" + question + R"(", "subject": ")" + subject +
           R"(", "choices": ["p", "q"], "answer": 1})" + "\n";
  };
  EXPECT_EQ(context(of_subject("1?", "law"), of_subject("2?", "art") + of_subject("3?", "law"), 1),
            "The following are multiple choice questions (with answers) about law.\n\n"
            "3?\nA. p\nB. q\nAnswer: B\n\n1?\nA. p\nB. q\nAnswer:");
  EXPECT_EQ(message_of(ErrorKind::kData, [&] { context(math("4?", "4"), sums, 4); }),
            "shots has 3 examples beside the question; expected 4");
  EXPECT_EQ(message_of(ErrorKind::kData,
                       [&] { context(of_subject("1?", "law"), of_subject("2?", "art"), 1); }),
            "shots has 0 examples of a question's subject; expected 1");
  EXPECT_EQ(
      message_of(ErrorKind::kData, [&] { context(math("4?", "4"), R"({"text": "x y"})", 1); }),
      "shots has examples of lambada; expected gsm8k");
}

// The filters of gsm8k: #### (\-?[0-9\.\,]+), the first; (-?[$0-9.,]{2,})|(-?[0-9]+), the last.
TEST(Tasks, NumbersInAnswersAreThoseOfTheFilters) {
  const struct {
    const char *text, *strict, *last;
  } cases[] = {
      {"It is 5.\n#### 1,234.5 and 7", "1,234.5", "7"},
      {"#### -3", "-3", "-3"},
      {"#### $5", "[invalid]", "$5"},
      {"so 18", "[invalid]", "18"},
      {"it costs $1,000.", "[invalid]", "$1,000."},
      {"from 3-4", "[invalid]", "-4"},
      {"a - b", "[invalid]", "[invalid]"},
      {"", "[invalid]", "[invalid]"},
      {"well...", "[invalid]", "..."},
      {"x. 7 y", "[invalid]", "7"},
      {"####  5 #### 6", "6", "6"},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(strict_number(each.text), each.strict) << each.text;
    EXPECT_EQ(last_number(each.text), each.last) << each.text;
  }
  EXPECT_TRUE(is_exact_match("1,234", "so\n#### $1234."));
  EXPECT_TRUE(is_exact_match("18", "#### 17\n#### 18"));
  EXPECT_FALSE(is_exact_match("18", "#### 81"));
  EXPECT_FALSE(is_exact_match("[invalid]", "#### 1"));
}

}  // namespace
}  // namespace ashlar::eval
