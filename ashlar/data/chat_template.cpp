#include "ashlar/data/chat_template.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ashlar/core/error.h"
#include "ashlar/data/jinja/render.h"
#include "ashlar/data/jinja/syntax.h"

namespace ashlar::data {
namespace {

using jinja::Rendering;
using jinja::Statement;
using jinja::Value;

// Enough for a thousand messages through the templates that are known.
constexpr int64_t kWork = int64_t(1) << 25, kWorkPerByte = 256;

bool has_generation(const std::vector<Statement>& statements) {
  return std::ranges::any_of(statements, [](const Statement& statement) {
    return statement.tag == jinja::StatementTag::kGeneration ||
           std::ranges::any_of(statement.bodies, has_generation);
  });
}

int64_t bytes_of(const Ordered& json) {
  if (json.is_string()) return 64 + static_cast<int64_t>(json.get_ref<const std::string&>().size());
  int64_t sum = 64;
  for (const auto& [key, value] : json.items()) {
    if (!json.is_structured()) break;
    sum += static_cast<int64_t>(key.size()) + bytes_of(value);
  }
  return sum;
}

Value value_of(Rendering& rendering, const Ordered& json, int depth) {
  if (depth > jinja::kMaxValueDepth)
    rendering.fail("the chat nests deeper than {} levels", jinja::kMaxValueDepth);
  if (json.is_string()) return rendering.text(json.get<std::string>());
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_float()) return Value(json.get<double>());
  if (json.is_number_integer()) {
    const auto integer = json.get<int64_t>();
    if (json.is_number_unsigned() && integer < 0)
      rendering.fail("{} in the chat needs more than 64 bits", json.get<uint64_t>());
    return Value(integer);
  }
  if (json.is_array()) {
    std::vector<Value> items;
    for (const Ordered& item : json) items.push_back(value_of(rendering, item, depth + 1));
    return rendering.list(std::move(items));
  }
  if (!json.is_object()) return Value(jinja::None{});
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : json.items())
    items.emplace_back(jinja::make_string(key), value_of(rendering, value, depth + 1));
  return rendering.dict_of_unique(std::move(items));
}

// A message as templates see it.
Ordered seen_message(const Ordered& message) {
  static constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking",
                                                            "reasoning"};
  Ordered out = Ordered::object();
  const auto reasoning = std::ranges::find_if(kReasoning, [&](const char* name) {
    return message.contains(name) && !message.at(name).is_null();
  });
  if (reasoning != kReasoning.end()) out["thinking"] = message.at(*reasoning);
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) out[key] = value;
  if (reasoning != kReasoning.end()) out["reasoning_content"] = message.at(*reasoning);
  return out;
}

jinja::Variables variables_of(Rendering& rendering, const Ordered& messages,
                              const ChatOptions& options) {
  jinja::Variables out;
  const auto add = [&](const std::string& name, Value value) {
    const auto known = std::ranges::find(out, name, &std::pair<std::string, Value>::first);
    if (known == out.end()) out.emplace_back(name, std::move(value));
  };
  Ordered seen = Ordered::array();
  for (const Ordered& message : messages) seen.push_back(seen_message(message));
  add("messages", value_of(rendering, seen, 0));
  add("tools", options.tools ? value_of(rendering, *options.tools, 0) : Value(jinja::None{}));
  if (options.variables)
    for (const auto& [name, value] : options.variables->items())
      add(name, value_of(rendering, value, 0));
  add("documents", Value(jinja::None{}));
  add("add_generation_prompt", Value(options.add_generation_prompt));
  return out;
}

}  // namespace

struct ChatTemplate::Syntax {
  std::vector<Statement> statements;
  bool has_generation = false;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name) : name_(std::move(name)) {
  auto syntax = std::make_unique<Syntax>();
  syntax->statements = jinja::parse_template(source, name_);
  syntax->has_generation = has_generation(syntax->statements);
  syntax_ = std::move(syntax);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::has_generation_blocks() const {
  return syntax_->has_generation;
}

RenderedChat ChatTemplate::render(const Ordered& messages, const ChatOptions& options) const {
  ASHLAR_REQUIRE(messages.is_array(), kData, "{}: the messages of a chat are a list of objects",
                 name_);
  for (const Ordered& message : messages)
    ASHLAR_REQUIRE(message.is_object(), kData, "{}: a message of the chat is no object", name_);
  int64_t bytes = bytes_of(messages);
  for (const Ordered* more : {options.tools, options.variables})
    if (more) bytes += bytes_of(*more);
  Rendering rendering(name_, kWork + kWorkPerByte * bytes);
  const jinja::Variables variables = variables_of(rendering, messages, options);
  jinja::Rendered rendered = jinja::render(syntax_->statements, rendering, variables, options.now);
  return {std::move(rendered.text), std::move(rendered.generated), rendered.asked_for_time};
}

}  // namespace ashlar::data
