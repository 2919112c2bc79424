#include "ashlar/eval/prompts.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::eval {
namespace {

using testing_support::message_of;

std::vector<std::string> texts_of(std::string_view lines) {
  std::vector<std::string> texts;
  for (const Prompt& prompt : parse_prompts(lines, "p.jsonl")) texts.push_back(prompt.text);
  return texts;
}

TEST(Prompts, OfEveryLine) {
  EXPECT_EQ(texts_of("{\"prompt\": \"a\\nb\"}\n\n  \r\n{\"id\": 3, \"prompt\": \"\"}\r\n"
                     "{\"prompt\":\"\\u00e9\"}"),
            (std::vector<std::string>{"a\nb", "", "\xC3\xA9"}));
  EXPECT_EQ(texts_of("\xEF\xBB\xBF{\"prompt\": \"x\"}"), std::vector<std::string>{"x"});
  EXPECT_EQ(parse_prompts("\n{\"prompt\": \"x\"}", "p.jsonl")[0].place, "p.jsonl line 2");
}

TEST(Prompts, MalformedLinesAreNamed) {
  const auto message = [](std::string_view lines) {
    return message_of(ErrorKind::kData, [&] { parse_prompts(lines, "p.jsonl"); });
  };
  const std::string good = "{\"prompt\": \"x\"}\n";
  for (const std::string_view empty : {"", "\n\n", "\xEF\xBB\xBF"})
    EXPECT_EQ(message(empty),
              "p.jsonl: it holds nothing; expected a line {\"prompt\": \"...\"} for each");
  EXPECT_EQ(message(good + "{\"text\": \"x\"}"),
            "p.jsonl line 2: the object has no member \"prompt\"; expected {\"prompt\": \"...\"}");
  EXPECT_EQ(message(good + good + "{\"prompt\": 3}"),
            "p.jsonl line 3: \"prompt\" is a number; expected a string");
  EXPECT_EQ(message("[1]"),
            "p.jsonl line 1: JSON that is an array stands there; expected {\"prompt\": \"...\"}");
  EXPECT_EQ(message(good + "Water").substr(0, 40), "p.jsonl line 2: not valid JSON at byte 1");
  EXPECT_EQ(message(good + "{\"prompt\": \"x\"").substr(0, 41),
            "p.jsonl line 2: not valid JSON at byte 15");
  EXPECT_EQ(message("{\"prompt\": \"\xFF\"}"), "p.jsonl line 1: not UTF-8 at byte 13");
  EXPECT_EQ(message("{\"prompt\": \"\\ud800\"}"),
            "p.jsonl line 1: \"prompt\" holds an escaped half of a surrogate pair, which is no "
            "character");
}

}  // namespace
}  // namespace ashlar::eval
