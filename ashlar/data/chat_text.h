// The text of a chat for training, and which parts of it are to be learned: what the assistant
// wrote, and what ends its turn.
//
// Where the template has {% generation %}, its blocks are these parts.  Otherwise a part begins
// where the text goes on after the earlier messages, rendered with the prompt for an answer, and
// ends with the first string behind it that ends a turn: what the template writes directly behind
// the answer of a chat of two messages ("<|im_end|>").
//
// Errors  kData: those of ChatTemplate; a template that renders the beginning of a chat differently
//         from the whole, or ends no turns, or a chat with too many answers for its size: a
//         template with {% generation %} is needed.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/data/chat_template.h"

namespace ashlar::data {

struct TrainingText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> learned;  // bytes [first, second), in order, apart
  bool asked_for_time = false;
};

class ChatTexts {
 public:
  // Only options.variables and options.now are used.  Template and variables must outlive this.
  ChatTexts(const ChatTemplate& chat_template, const ChatOptions& options);
  // chat: as of chat_of_row.  Threads: may be called from several at once.
  TrainingText text_of(const Ordered& chat) const;

 private:
  std::vector<std::pair<size_t, size_t>> by_prefixes(const std::string& text,
                                                     const Ordered& messages,
                                                     const ChatOptions& options) const;
  size_t answer_begin(const std::string& text, const Ordered& messages, size_t answer,
                      const ChatOptions& options) const;

  const ChatTemplate& template_;
  ChatOptions options_;
  std::string turn_end_;  // "": the template has {% generation %}
};

}  // namespace ashlar::data
