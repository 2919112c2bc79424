#include "ashlar/data/chat_row.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/core/text.h"
#include "ashlar/core/utf8.h"
#include "ashlar/data/content.h"

namespace ashlar::data {
namespace {

using Event = Ordered::parse_event_t;

Ordered parse_row(std::string_view line, const std::string& where) {
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  const Utf8Report utf8 = check_utf8(line);
  ASHLAR_REQUIRE(utf8.num_invalid == 0, kData, "{}: not valid JSON at byte {}: it is not UTF-8",
                 where, utf8.first_invalid + 1);
  // The parser takes a zero byte for the end and would accept anything behind it.
  const size_t zero = line.find('\0');
  ASHLAR_REQUIRE(zero == line.npos, kData, "{}: not valid JSON at byte {}: a zero byte", where,
                 zero + 1);
  int64_t num_values = 0;
  const auto check = [&](int depth, Event event, Ordered& value) {
    ASHLAR_REQUIRE(depth <= kMaxRowDepth, kData, "{}: the row nests deeper than {} levels", where,
                   kMaxRowDepth);
    const bool begins =
        event == Event::value || event == Event::object_start || event == Event::array_start;
    ASHLAR_REQUIRE(!begins || ++num_values <= kMaxRowValues, kData,
                   "{}: the row has more than {} values", where, kMaxRowValues);
    ASHLAR_REQUIRE(
        event != Event::value || !value.is_number_float() || std::abs(value.get<double>()) < 0x1p63,
        kData, "{}: the number {} needs more than 64 bits", where, value.dump());
    return true;
  };
  try {
    Ordered row = Ordered::parse(line, check);
    ASHLAR_REQUIRE(row.is_object(), kData, "{}: the row is no JSON object", where);
    return row;
  } catch (const nlohmann::json::exception& error) {
    ASHLAR_FAIL(kData, "{}: not valid JSON: {}", where, printable(error.what()));
  }
}

const std::string& text_in(const Ordered& row, const char* key, const std::string& where) {
  const auto found = row.find(key);
  ASHLAR_REQUIRE(found != row.end(), kData, "{}: \"{}\" is missing", where, key);
  ASHLAR_REQUIRE(found->is_string(), kData, "{}: \"{}\" is {}; expected a string", where, key,
                 found->type_name());
  return found->get_ref<const std::string&>();
}

// "" if it is absent or null.
std::string optional_text(const Ordered& row, const char* key, const std::string& where) {
  const auto found = row.find(key);
  return found == row.end() || found->is_null() ? "" : text_in(row, key, where);
}

std::string instruction_of(const Ordered& row, const std::string& where) {
  const std::string& instruction = text_in(row, "instruction", where);
  const std::string input = optional_text(row, "input", where);
  return input.empty() ? instruction : instruction + "\n\n" + input;
}

struct SharedRole {
  std::string_view from, role;
};
constexpr SharedRole kSharedRoles[] = {
    {"human", "user"},        {"user", "user"},           {"gpt", "assistant"},
    {"chatgpt", "assistant"}, {"assistant", "assistant"}, {"system", "system"},
    {"tool", "tool"},         {"observation", "tool"},    {"function_response", "tool"},
};

Ordered shared_message(const Ordered& turn, const std::string& where) {
  if (turn.contains("role")) return turn;
  const std::string& from = text_in(turn, "from", where);
  const auto* known = std::ranges::find(kSharedRoles, from, &SharedRole::from);
  ASHLAR_REQUIRE(known != std::end(kSharedRoles), kData,
                 "{}: \"from\" is \"{}\"; expected human, gpt, system or tool", where,
                 printable(from));
  return {{"role", known->role}, {"content", text_in(turn, "value", where)}};
}

Ordered message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

void append_messages(Ordered& to, const Ordered& row, const char* key, const std::string& where) {
  const Ordered& list = row.at(key);
  ASHLAR_REQUIRE(list.is_array(), kData, "{}: \"{}\" is {}; expected a list of messages", where,
                 key, list.type_name());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}: {}[{}]", where, key, i);
    ASHLAR_REQUIRE(list[i].is_object(), kData, "{}: it is {}; expected an object", place,
                   list[i].type_name());
    to.push_back(std::string_view(key) == "conversations" ? shared_message(list[i], place)
                                                          : list[i]);
    text_in(to.back(), "role", place);
  }
}

Ordered tools_of(const Ordered& row, const std::string& where) {
  Ordered tools = row.value("tools", Ordered());
  if (tools.is_string()) {
    const auto& text = tools.get_ref<const std::string&>();
    if (text.empty()) return {};
    tools = parse_row(fmt::format("{{\"tools\": {}}}", text), where + ": tools").at("tools");
  }
  ASHLAR_REQUIRE(tools.is_null() || tools.is_array(), kData,
                 "{}: \"tools\" is {}; expected a list or its JSON", where, tools.type_name());
  return tools.empty() ? Ordered() : tools;
}

void append_system(Ordered& messages, const Ordered& row, const std::string& where) {
  const std::string system = optional_text(row, "system", where);
  if (!system.empty()) messages.push_back(message("system", system));
}

}  // namespace

Ordered chat_of_row(std::string_view line, const std::string& where) {
  const Ordered row = parse_row(line, where);
  Ordered messages = Ordered::array();
  append_system(messages, row, where);
  size_t prompt_messages = 0;
  if (row.contains("messages")) {
    append_messages(messages, row, "messages", where);
  } else if (row.contains("conversations")) {
    append_messages(messages, row, "conversations", where);
  } else if (row.contains("instruction")) {
    messages.push_back(message("user", instruction_of(row, where)));
    messages.push_back(message("assistant", text_in(row, "output", where)));
  } else if (row.contains("prompt") && row.contains("completion")) {
    const bool lists = row.at("prompt").is_array();
    if (lists)
      append_messages(messages, row, "prompt", where);
    else
      messages.push_back(message("user", text_in(row, "prompt", where)));
    prompt_messages = messages.size();
    if (lists)
      append_messages(messages, row, "completion", where);
    else
      messages.push_back(message("assistant", text_in(row, "completion", where)));
  } else {
    ASHLAR_FAIL(kData,
                "{}: the row has no messages, conversations, instruction and output, or prompt and "
                "completion{}",
                where, members_of(line));
  }
  return {{"messages", std::move(messages)},
          {"tools", tools_of(row, where)},
          {"prompt_messages", prompt_messages}};
}

CompletionRow completion_of_row(std::string_view line, const std::string& where) {
  const Ordered row = parse_row(line, where);
  if (row.contains("instruction"))
    return {instruction_of(row, where), text_in(row, "output", where)};
  ASHLAR_REQUIRE(row.contains("prompt") && row.contains("completion"), kData,
                 "{}: the row has neither prompt and completion nor instruction and output{}",
                 where, members_of(line));
  return {text_in(row, "prompt", where), text_in(row, "completion", where)};
}

}  // namespace ashlar::data
