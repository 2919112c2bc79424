// Rows of chats and completions, and which parts of a chat are learned.
#include "ashlar/data/chat_row.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "ashlar/data/chat_text.h"
#include "ashlar/data/jinja/python_text.h"
#include "tests/support/errors.h"

namespace ashlar::data {
namespace {

using testing_support::message_of;

Ordered messages_of(const std::string& line) {
  return chat_of_row(line, "x").at("messages");
}

TEST(ChatRow, ReadsEveryFormOfAChat) {
  const Ordered expected = Ordered::parse(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])");
  for (
      const char* line :
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
       R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
       R"({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
       R"({"instruction": "a", "input": "", "output": "b"})",
       R"({"instruction": "a", "output": "b"})", R"({"prompt": "a", "completion": "b"})",
       R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]})"})
    EXPECT_EQ(messages_of(line), expected) << line;
  EXPECT_EQ(messages_of(R"({"instruction": "a", "input": "c", "output": "b"})")[0].at("content"),
            "a\n\nc");
  EXPECT_EQ(
      messages_of(R"({"system": "s", "conversations": [{"from": "human", "value": "a"}]})"),
      Ordered::parse(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}])"));
  const Ordered tools = Ordered::parse(R"([{"name": "f", "a": 1}])");
  EXPECT_EQ(chat_of_row(R"({"messages": [], "tools": [{"name": "f", "a": 1}]})", "x").at("tools"),
            tools);
  EXPECT_EQ(
      chat_of_row(R"({"messages": [], "tools": "[{\"name\": \"f\", \"a\": 1}]"})", "x").at("tools"),
      tools);
  EXPECT_TRUE(chat_of_row(R"({"messages": [], "tools": []})", "x").at("tools").is_null());
}

TEST(ChatRow, ReadsCompletions) {
  const CompletionRow row = completion_of_row(R"({"prompt": "a", "completion": "b"})", "x");
  EXPECT_EQ(row.prompt, "a");
  EXPECT_EQ(row.completion, "b");
  EXPECT_EQ(completion_of_row(R"({"instruction": "a", "input": "c", "output": "b"})", "x").prompt,
            "a\n\nc");
}

TEST(ChatRow, RefusesWithTheFault) {
  const auto refusal = [](const std::string& line) {
    return message_of(ErrorKind::kData, [&] { chat_of_row(line, "f line 3"); });
  };
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(refusal("[]"), "f line 3: the row is no JSON object");
  EXPECT_EQ(refusal(R"({"text": "a"})"),
            "f line 3: the row has no messages, conversations, instruction and output, or prompt "
            "and completion (there are \"text\")");
  EXPECT_EQ(refusal(R"({"messages": [1]})"),
            "f line 3: messages[0]: it is number; expected an object");
  EXPECT_EQ(refusal(R"({"messages": [{"content": "a"}]})"),
            "f line 3: messages[0]: \"role\" is missing");
  EXPECT_EQ(
      refusal(R"({"conversations": [{"from": "martian", "value": "a"}]})"),
      "f line 3: conversations[0]: \"from\" is \"martian\"; expected human, gpt, system or tool");
  EXPECT_EQ(refusal(R"({"messages": )" + deep + "}"),
            "f line 3: the row nests deeper than 64 levels");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": 1e999}]})").find("f line 3: "),
            0u);
  EXPECT_EQ(refusal(R"({"messages": [], "n": 123456789012345678901234567890})")
                .find("f line 3: the number"),
            0u);
  EXPECT_NE(refusal("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(refusal("{\"a\": \"\xff\"}").find("not UTF-8"), std::string::npos);
  EXPECT_EQ(refusal(std::string("{}\0 more", 8)),
            "f line 3: not valid JSON at byte 3: a zero byte");
  std::string many = "[0";
  for (int64_t i = 0; i < kMaxRowValues; ++i) many += ",0";
  EXPECT_EQ(refusal("{\"messages\": " + many + "]}"),
            "f line 3: the row has more than 65536 values");
}

ChatTemplate template_of(const std::string& name) {
  return {read_text(*posix_files(), ASHLAR_FIXTURES "/chat_templates/" + name), name};
}

// The learned parts of a chat, joined by '|'.
std::string learned_of(const ChatTemplate& chat_template, const Ordered& chat) {
  static const Ordered names = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  const TrainingText text =
      ChatTexts(chat_template, {.variables = &names, .now = {}}).text_of(chat);
  std::string out;
  for (const auto& [begin, end] : text.learned)
    out += (out.empty() ? "" : "|") + text.text.substr(begin, end - begin);
  return out;
}

const Ordered kTwoTurns = chat_of_row(
    R"({"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A stone."},
        {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]})",
    "x");

TEST(ChatText, LearnsWhatTheAssistantWroteAndTheEndOfItsTurn) {
  const auto learned = [](const char* name) { return learned_of(template_of(name), kTwoTurns); };
  EXPECT_EQ(learned("chatml.jinja"), "A stone.<|im_end|>|Because.<|im_end|>");
  EXPECT_EQ(learned("llama2.jinja"), " A stone. </s>| Because. </s>");
  EXPECT_EQ(learned("llama3_1.jinja"), "A stone.<|eot_id|>|Because.<|eot_id|>");
  EXPECT_EQ(learned("qwen2_5.jinja"), "A stone.<|im_end|>|Because.<|im_end|>");
  // Only the last answer has a place for thoughts.
  EXPECT_EQ(learned("qwen3.jinja"), "A stone.<|im_end|>|<think>\n\n</think>\n\nBecause.<|im_end|>");
  EXPECT_EQ(learned("mistral_7b.jinja"), "A stone.</s>|Because.</s>");
  EXPECT_EQ(learned("gemma2.jinja"), "A stone.<end_of_turn>|Because.<end_of_turn>");
  EXPECT_EQ(learned("phi3_5.jinja"), "A stone.<|end|>|Because.<|end|>");
  EXPECT_EQ(learned("phi4.jinja"), "A stone.<|im_end|>|Because.<|im_end|>");
  EXPECT_EQ(learned("zephyr.jinja"), "A stone.</s>|Because.</s>");
  // Its prompt begins a thought that the text of a whole chat does not have.
  EXPECT_EQ(learned("deepseek_r1_distill.jinja"),
            "A stone.<｜end▁of▁sentence｜>|Because.<｜end▁of▁sentence｜>");
}

// TRL keeps variants of these templates that mark by blocks what is learned.
TEST(ChatText, AgreesWithTemplatesThatMarkIt) {
  const Ordered tools = chat_of_row(
      R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
          "messages": [{"role": "system", "content": "S."}, {"role": "user", "content": "What?"},
          {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function",
           "function": {"name": "f", "arguments": {"x": 1}}}]},
          {"role": "tool", "content": "7"}, {"role": "assistant", "content": "Seven."}]})",
      "x");
  // Line ends around an answer may be inside of its block.
  const auto without_line_ends = [](const std::string& text) {
    std::string out;
    for (const std::string& part : split(text, '|'))
      out += std::string(jinja::strip(part, jinja::Side::kBoth, "\n")) + "|";
    return out;
  };
  for (const auto& [plain, marked] : {std::pair("llama3.jinja", "llama3_training.jinja"),
                                      {"qwen2_5.jinja", "qwen2_5_training.jinja"}})
    for (const Ordered* chat : {&kTwoTurns, &tools}) {
      if (chat == &tools && std::string_view(plain) == "llama3.jinja") continue;  // no tools
      EXPECT_EQ(without_line_ends(learned_of(template_of(plain), *chat)),
                without_line_ends(learned_of(template_of(marked), *chat)))
          << plain;
    }
}

TEST(ChatText, LearnsTheCompletionAlone) {
  const Ordered chat = chat_of_row(
      R"({"prompt": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "Hm."},
          {"role": "user", "content": "Well?"}],
          "completion": [{"role": "assistant", "content": "So."}]})",
      "x");
  EXPECT_EQ(learned_of(template_of("chatml.jinja"), chat), "So.<|im_end|>");
  EXPECT_EQ(learned_of(template_of("llama3_training.jinja"), chat).find("So.<|eot_id|>"), 0u);
}

TEST(ChatText, RefusesATemplateThatHidesWhereAnswersAre) {
  // It writes the last question alone.
  const ChatTemplate last(
      "{% for m in messages %}{% if m.role == 'assistant' or loop.last %}"
      "{{ m.content }}<e>{% endif %}{% endfor %}",
      "last");
  EXPECT_NE(message_of(ErrorKind::kData, [&] { learned_of(last, kTwoTurns); })
                .find("differently from the whole chat"),
            std::string::npos);
  const ChatTemplate endless("{% for m in messages %}{{ m.content }}{% endfor %}", "endless");
  EXPECT_NE(message_of(ErrorKind::kData, [&] { learned_of(endless, kTwoTurns); })
                .find("writes nothing behind"),
            std::string::npos);
}

// Each answer would render a MiB again.
TEST(ChatText, RefusesLongChatsWithoutMarks) {
  Ordered messages = {{{"role", "user"}, {"content", std::string(1 << 20, 'x')}}};
  for (int i = 0; i < 1024; ++i) messages.push_back({{"role", "assistant"}, {"content", "a"}});
  const Ordered chat = {{"messages", messages}, {"tools", nullptr}, {"prompt_messages", 0}};
  EXPECT_NE(message_of(ErrorKind::kData, [&] { learned_of(template_of("chatml.jinja"), chat); })
                .find("so long a chat needs a template with {% generation %}"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::data
