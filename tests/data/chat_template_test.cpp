// Chat templates of published models, held against what transformers renders
// (scripts/peers/chat_templates.py), and templates that mean harm.
#include "ashlar/data/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ashlar/core/files.h"
#include "ashlar/core/text.h"
#include "tests/support/errors.h"

namespace ashlar::data {
namespace {

using testing_support::message_of;

const std::string kChatFixtures = ASHLAR_FIXTURES "/chat_templates/";

std::string chat_fixture(const std::string& name) {
  return read_text(*posix_files(), kChatFixtures + name);
}

std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_hour = 12;
  time.tm_wday = 5;
  time.tm_yday = 207;
  return time;
}

// The byte at which a character begins.
size_t byte_of(const std::string& text, size_t character) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((text[at] & 0xC0) == 0x80) continue;
    if (character-- == 0) break;
  }
  return at;
}

// expected: the text and spans that transformers made of the same template, or a refusal.
void expect_rendered(const ChatTemplate& chat_template, const Ordered& messages,
                     const ChatOptions& options, const Ordered& expected) {
  if (expected.contains("refused")) {
    EXPECT_THROW(chat_template.render(messages, options), Error) << expected.dump();
    return;
  }
  const RenderedChat rendered = chat_template.render(messages, options);
  const auto text = expected.at("text").get<std::string>();
  EXPECT_EQ(rendered.text, text);
  std::vector<std::pair<size_t, size_t>> spans;
  for (const Ordered& span : expected.value("spans", Ordered::array()))
    spans.emplace_back(byte_of(text, span[0]), byte_of(text, span[1]));
  EXPECT_EQ(rendered.generated, spans);
}

std::vector<Ordered> golden_lines(const std::string& name) {
  std::vector<Ordered> rows;
  for (const std::string& line : split(chat_fixture(name), '\n'))
    if (!line.empty()) rows.push_back(Ordered::parse(line));
  return rows;
}

TEST(ChatTemplate, RendersAsTransformers) {
  const Ordered golden = Ordered::parse(chat_fixture("cases.json"));
  const std::vector<Ordered> rows = golden_lines("rendered.jsonl");
  ASSERT_EQ(rows.size(), golden.at("cases").size() * 23);
  for (const Ordered& row : rows) {
    const auto file = row.at("template").get<std::string>();
    SCOPED_TRACE(file + ", case " + row.at("case").get<std::string>());
    const ChatTemplate chat_template(chat_fixture(file), file);
    Ordered chat, variables = golden.at("special");
    for (const Ordered& one : golden.at("cases"))
      if (one.at("name") == row.at("case")) chat = one;
    variables.update(chat.value("variables", Ordered::object()));
    const Ordered tools = chat.value("tools", Ordered());
    ChatOptions options{.variables = &variables, .now = fixed_time()};
    if (!tools.is_null()) options.tools = &tools;
    options.add_generation_prompt = chat.value("prompt", false);
    expect_rendered(chat_template, chat.at("messages"), options, row);
  }
}

TEST(ChatTemplate, ReadsTheLanguageAsJinja) {
  const Ordered golden = Ordered::parse(chat_fixture("cases.json"));
  Ordered variables = golden.at("special");
  variables.update(golden.at("values"));
  const ChatOptions options{.variables = &variables, .now = fixed_time()};
  const std::vector<Ordered> rows = golden_lines("language.jsonl");
  ASSERT_GT(rows.size(), 250u);
  for (const Ordered& row : rows) {
    const auto source = row.at("source").get<std::string>();
    SCOPED_TRACE(source);
    if (row.contains("refused")) {
      EXPECT_THROW(ChatTemplate(source, "t").render(Ordered::array(), options), Error);
      continue;
    }
    expect_rendered(ChatTemplate(source, "t"), Ordered::array(), options, row);
  }
}

TEST(ChatTemplate, RefusesByNameAndPlace) {
  const auto refusal = [](const std::string& source) {
    return message_of(ErrorKind::kData,
                      [&] { ChatTemplate(source, "chat.jinja").render(Ordered::array()); });
  };
  EXPECT_EQ(refusal("a\n {% include 'x' %}"),
            "chat.jinja line 2 column 2: the tag 'include' is not supported");
  EXPECT_EQ(refusal("{{ 'x' | wordwrap }}"),
            "chat.jinja line 1 column 10: the filter 'wordwrap' is not supported");
  EXPECT_EQ(refusal("{{ 'x' is escaped }}"),
            "chat.jinja line 1 column 11: the test 'escaped' is not supported");
  EXPECT_EQ(refusal("{{ 'x'.zfill(3) }}"),
            "chat.jinja line 1 column 13: the method 'zfill' of a str is not supported");
  EXPECT_EQ(refusal("{{ lipsum() }}"),
            "chat.jinja line 1 column 4: the function 'lipsum' is not supported");
  EXPECT_EQ(refusal("{{ 'É'|lower }}"),
            "chat.jinja line 1 column 8: lower: the case of letters beyond ASCII is not supported");
  EXPECT_EQ(refusal("{{ raise_exception('no\nlines') }}"),
            "chat.jinja line 1 column 19: the template refuses: no?lines");
  EXPECT_EQ(refusal("\xff"), "chat.jinja: byte 0 is not UTF-8");
}

// Each would take hours, gigabytes or the stack.
TEST(ChatTemplate, BoundsWhatATemplateTakes) {
  const auto refusal = [](const std::string& source) {
    return message_of(ErrorKind::kData,
                      [&] { ChatTemplate(source, "t").render(Ordered::array()); });
  };
  const auto nested = [](std::string_view open, std::string_view inside, std::string_view close) {
    std::string out;
    for (int i = 0; i < 100'000; ++i) out += open;
    out += inside;
    for (int i = 0; i < 100'000; ++i) out += close;
    return out;
  };
  const std::string work = "the template takes too much time or memory";
  const std::string loop = "{% for i in range(100000) %}{% for j in range(100000) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  EXPECT_NE(refusal(loop + end).find(work), std::string::npos);
  EXPECT_NE(refusal(loop + "{% set a = i %}" + end).find(work), std::string::npos);
  EXPECT_NE(refusal("{% set n = namespace(s='x') %}" + loop + "{% set n.s = n.s ~ n.s %}" + end)
                .find(work),
            std::string::npos);
  EXPECT_NE(refusal("{{ 'x' * 99999999999 }}").find(work), std::string::npos);
  EXPECT_NE(refusal("{{ [1] * 99999999999 }}").find("too large"), std::string::npos);
  EXPECT_NE(refusal("{{ 'x'.replace('', 'y' * 60000000) }}").find(work), std::string::npos);
  const std::string long_text = "{% set s = 'x' * 1000000 %}{% set p = 'x' * 500000 ~ 'y' %}";
  for (const char* search : {"p in s", "s.find(p)", "s.count(p)", "s.split(p)", "s.partition(p)",
                             "s.replace(p, '')", "s | replace(p, '')", "s | trim(p)"})
    EXPECT_NE(refusal(long_text + "{{ " + search + " }}").find(work), std::string::npos) << search;
  const std::string few = "{% for i in range(200) %}";
  EXPECT_NE(
      refusal("{% set n = namespace(s=[1]) %}" + few + "{% set n.s = [n.s, n.s] %}{% endfor %}")
          .find("parts"),
      std::string::npos);
  EXPECT_NE(refusal("{% set n = namespace(s=[]) %}" + few + "{% set n.s = [n.s] %}{% endfor %}")
                .find("deeper than 100"),
            std::string::npos);
  EXPECT_NE(refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").find("too deeply"),
            std::string::npos);
  EXPECT_NE(refusal("{{ " + nested("(", "1", ")") + " }}").find("deeper than 200"),
            std::string::npos);
  EXPECT_NE(refusal(nested("{% if 1 %}", "", "")).find("deeper than 200"), std::string::npos);
  EXPECT_NE(refusal("{{ 1" + nested(" + 1", "", "") + " }}").find("too many operators"),
            std::string::npos);
  EXPECT_NE(refusal("{{ " + nested("-", "1", "") + " }}").find("deeper than 200"),
            std::string::npos);
}

TEST(ChatTemplate, TellsWhetherTheTextDependsOnTheTime) {
  const Ordered none = Ordered::array();
  const ChatOptions options{.now = fixed_time()};
  EXPECT_TRUE(ChatTemplate("{{ strftime_now('%Y') }}", "t").render(none, options).asked_for_time);
  EXPECT_FALSE(ChatTemplate("{{ 1 }}", "t").render(none, options).asked_for_time);
}

}  // namespace
}  // namespace ashlar::data
