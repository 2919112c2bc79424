// A chat template: turns the messages of a chat into the text that a model was trained on.
//
// Templates are those of Hugging Face models, written in Jinja: chat_template.jinja, or the member
// chat_template of tokenizer_config.json.  docs/chat.md lists what of the language is known.
//
// Source   transformers 5.24, apply_chat_template: which variables a template sees; members of
//          messages that are null are left out, and reasoning_content, thinking and reasoning stand
//          for each other.
// Threads  render may be called from several threads at once.
// Errors   kData "NAME line L column C: ...": a template that is not well-formed, something that is
//          not supported, an undefined value, raise_exception, too much work or nesting.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/core/json.h"

namespace ashlar::data {

struct ChatOptions {
  const Ordered* tools = nullptr;      // an array of JSON schemas of functions
  const Ordered* variables = nullptr;  // an object: bos_token, eos_token, enable_thinking, ...
  bool add_generation_prompt = false;  // ends with what begins the assistant's answer
  std::tm now = {};                    // for strftime_now
};

struct RenderedChat {
  std::string text;
  // The bytes [first, second) of `text` that {% generation %} blocks made, in order.
  std::vector<std::pair<size_t, size_t>> generated;
  bool asked_for_time = false;  // the text depends on ChatOptions::now
};

class ChatTemplate {
 public:
  ChatTemplate(std::string_view source, std::string name);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  const std::string& name() const { return name_; }
  bool has_generation_blocks() const;
  // messages: an array of objects.
  RenderedChat render(const Ordered& messages, const ChatOptions& options = {}) const;

 private:
  struct Syntax;
  std::string name_;
  std::unique_ptr<const Syntax> syntax_;
};

}  // namespace ashlar::data
