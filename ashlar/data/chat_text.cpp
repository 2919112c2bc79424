#include "ashlar/data/chat_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"

namespace ashlar::data {
namespace {

constexpr std::string_view kWhite = " \t\r\n";
// The most that the prefixes of a chat, one for each answer, may have together.
constexpr size_t kMaxPrefixBytes = size_t(1) << 30;

// The bytes that both begin with, up to a border of characters.
size_t common_prefix(std::string_view a, std::string_view b) {
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto size = static_cast<size_t>(differ.first - a.begin());
  while (size > 0 && size < a.size() && continues_character(a[size])) --size;
  return size;
}

size_t common_suffix(std::string_view a, std::string_view b) {
  const auto differ = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<size_t>(differ.first - a.rbegin());
}

// The text directly behind an answer, up to the next white space: " </s>", "<|im_end|>".
std::string turn_end_of(const ChatTemplate& chat_template, const ChatOptions& options) {
  const auto render = [&](const char* answer) {
    const Ordered chat = {{{"role", "user"}, {"content", "a"}},
                          {{"role", "assistant"}, {"content", answer}}};
    return chat_template.render(chat, options).text;
  };
  const std::string text = render("b"), other = render("c");
  const std::string_view behind =
      std::string_view(text).substr(text.size() - common_suffix(text, other));
  const size_t word = behind.find_first_not_of(kWhite);
  ASHLAR_REQUIRE(
      text != other && word != behind.npos, kData,
      "{}: it writes nothing behind the assistant's answer, so nothing shows where a turn "
      "ends; expected a template with {{% generation %}}",
      chat_template.name());
  return std::string(behind.substr(0, behind.find_first_of(kWhite, word)));
}

Ordered first_messages(const Ordered& messages, size_t count) {
  Ordered first = Ordered::array();
  for (size_t i = 0; i < count; ++i) first.push_back(messages[i]);
  return first;
}

}  // namespace

ChatTexts::ChatTexts(const ChatTemplate& chat_template, const ChatOptions& options)
    : template_(chat_template), options_(options) {
  if (!template_.has_generation_blocks()) turn_end_ = turn_end_of(template_, options_);
}

TrainingText ChatTexts::text_of(const Ordered& chat) const {
  const Ordered& messages = chat.at("messages");
  ChatOptions options = options_;
  if (!chat.at("tools").is_null()) options.tools = &chat.at("tools");
  RenderedChat rendered = template_.render(messages, options);
  TrainingText out{std::move(rendered.text), std::move(rendered.generated),
                   rendered.asked_for_time};
  if (!template_.has_generation_blocks()) out.learned = by_prefixes(out.text, messages, options);
  if (const auto prompt = chat.at("prompt_messages").get<size_t>(); prompt > 0) {
    const size_t begin = answer_begin(out.text, messages, prompt, options);
    std::erase_if(out.learned, [&](const auto& span) { return span.first < begin; });
  }
  return out;
}

std::vector<std::pair<size_t, size_t>> ChatTexts::by_prefixes(const std::string& text,
                                                              const Ordered& messages,
                                                              const ChatOptions& options) const {
  const auto answers = static_cast<size_t>(std::ranges::count_if(
      messages, [](const Ordered& message) { return message.value("role", "") == "assistant"; }));
  ASHLAR_REQUIRE(answers * text.size() <= kMaxPrefixBytes, kData,
                 "{}: the chat has {} answers in {} bytes, and what stands before each of them is "
                 "rendered again, of which {} bytes is the limit; so long a chat needs a template "
                 "with {{% generation %}}",
                 template_.name(), answers, text.size(), kMaxPrefixBytes);
  std::vector<std::pair<size_t, size_t>> learned;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].value("role", "") != "assistant") continue;
    const size_t begin = answer_begin(text, messages, i, options);
    const size_t end = text.find(turn_end_, begin);
    ASHLAR_REQUIRE(end != std::string::npos && (learned.empty() || begin >= learned.back().second),
                   kData,
                   "{}: '{}' does not end the turn of message {}; expected a template with {{% "
                   "generation %}}",
                   template_.name(), printable(turn_end_), i + 1);
    learned.emplace_back(begin, end + turn_end_.size());
  }
  return learned;
}

size_t ChatTexts::answer_begin(const std::string& text, const Ordered& messages, size_t answer,
                               const ChatOptions& options) const {
  const Ordered before = first_messages(messages, answer);
  ChatOptions prompted = options;
  prompted.add_generation_prompt = true;
  const std::string prompt = template_.render(before, prompted).text;
  if (text.starts_with(prompt)) return prompt.size();
  // The prompt may begin more of the answer than the text has: "<think>".
  const std::string plain = template_.render(before, options).text;
  ASHLAR_REQUIRE(text.starts_with(plain), kData,
                 "{}: it renders the {} messages before an answer differently from the whole chat, "
                 "so that the answer cannot be told apart; expected a template with {{% generation "
                 "%}}",
                 template_.name(), answer);
  size_t begin = common_prefix(text, prompt);
  const auto content = messages[answer].find("content");
  if (content == messages[answer].end() || !content->is_string() || content->empty()) return begin;
  // The answer may begin as the prompt ends, by chance: no further than where its content stands.
  Ordered changed = messages;
  const auto& words = content->get_ref<const std::string&>();
  changed[answer]["content"] = (words.starts_with('x') ? "y" : "x") + words;
  return std::min(begin, common_prefix(text, template_.render(changed, options).text));
}

}  // namespace ashlar::data
