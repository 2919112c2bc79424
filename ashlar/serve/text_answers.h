// One request for text and its answers: from the parsed request to what goes back, whole or as
// events of a stream.
//
// Source   the objects text_completion, chat.completion and chat.completion.chunk of OpenAI's API.
//          A token whose bytes are no text is spelled bytes:\xE2\x80, as there; of a model without
//          a tokenizer, a token is token_id:7.
// Errors   kData: a prompt that is too long or no text of this model; a chat without a template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/json.h"
#include "ashlar/eval/answer_text.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/serve/engine.h"
#include "ashlar/serve/request.h"

namespace ashlar::serve {

// The one model of a service.
struct ServedModel {
  std::string name;
  const eval::ModelTexts& texts;
  const eval::ModelSource& source;
  const eval::ChatPrompts* chats;  // null: the model has no chat template
  int64_t context;                 // tokens of a prompt and its answer
};

class TextAnswers {
 public:
  // number: tells requests apart in their ids; created: seconds since 1970.
  TextAnswers(const ServedModel& model, SlotEngine& engine, TextRequest request, RequestKind kind,
              int64_t number, int64_t created);
  ~TextAnswers();  // cancels what has not ended
  TextAnswers(const TextAnswers&) = delete;
  TextAnswers& operator=(const TextAnswers&) = delete;

  bool streams() const { return request_.stream; }
  bool ended() const { return num_ended_ == choices_.size(); }
  // Takes what has come within this time; rethrows what ended the request.
  void advance(std::chrono::milliseconds most);
  std::string whole() const;  // the answer, once it has ended
  // The events since the last call, each "data: ...\n\n"; after the end, with the end of the
  // stream.
  std::string take_events();

 private:
  struct Choice {
    size_t prompt = 0;
    std::optional<eval::AnswerText> stream;  // none: the model has no tokenizer
    std::string text, fresh;                 // fresh: not yet sent as an event
    std::vector<eval::TokenScore> scores;
    // The characters before each token whose score is given, and with echo before the first.
    std::vector<int64_t> offsets;
    int64_t num_before = 0;  // characters of the prompt, where it is no part of the text
    // The token, by its offset, that begins a text without the space that it has inside of one; so
    // do those before it, of which the text has nothing.
    std::optional<size_t> opening;
    size_t num_sent_scores = 0;
    int64_t num_made = 0;
    std::string finish;  // "": it has not ended
    bool begun = false, finish_sent = false;
  };
  void encode_prompts();
  std::vector<int32_t> encode(const PromptInput& prompt) const;
  eval::GenerateSpec spec_for(const std::vector<int32_t>& ids, uint64_t number) const;
  std::vector<PromptJob> make_jobs();
  void add_choice(size_t prompt);
  void take(const TokenEvent& event);
  void end(Choice& choice, const char* finish);
  Ordered frame(const char* object) const;
  Ordered usage() const;
  Ordered logprobs_of(const Choice& choice, size_t first) const;
  Ordered completion_logprobs(const Choice& choice, size_t first) const;
  Ordered chat_logprobs(const Choice& choice, size_t first) const;
  Ordered event_of(size_t index, Choice& choice) const;
  void find_opening(Choice& choice, int32_t id, int64_t num_before) const;
  // opens: the token begins the text.
  std::string token_text(int32_t id, bool opens) const;
  std::string token_bytes(int32_t id, bool opens) const;

  const ServedModel& model_;
  SlotEngine& engine_;
  TextRequest request_;
  const RequestKind kind_;
  std::string id_;
  int64_t created_;
  uint64_t seed_ = 0;
  std::vector<int32_t> stop_ids_;
  std::vector<std::vector<int32_t>> prompts_;  // ids
  std::vector<Choice> choices_;
  size_t num_ended_ = 0;
  bool end_sent_ = false;
  std::shared_ptr<Ticket> ticket_;
};

}  // namespace ashlar::serve
