// Prints what is generated for several prompts, in their order: the answer of the first that has
// not ended as it comes, those behind it when their turn comes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/eval/answer_text.h"
#include "ashlar/eval/model_texts.h"
#include "ashlar/eval/slots.h"

namespace ashlar::cli {

// A prompt and the settings under which it is continued.
struct PromptRequest {
  std::vector<int32_t> ids;
  eval::GenerateSpec spec;
  int64_t prompt = 0, sample = 0;  // its index, and that of the sample of this prompt
  int64_t length() const { return int64_t(ids.size()) + spec.max_tokens; }
};

class Answers {
 public:
  struct Form {
    bool json = false;
    bool many = false;         // each answer has its heading, or its index
    bool samples = false;      // and the index of its sample
    bool with_prompt = false;  // the text of the prompt comes before the answer
  };
  // Both must outlive it.
  Answers(const std::vector<PromptRequest>& requests, const eval::ModelTexts& texts,
          const std::vector<std::string>& stops, Form form);
  // Takes a token; true if its request ends here, because a stop string came.
  bool add(const eval::PromptSlots::NewToken& token);

 private:
  struct Answer {
    std::vector<int32_t> made;
    std::optional<eval::AnswerText> stream;  // none: ids alone are shown
    std::string text;
    bool ended = false;
  };
  void begin();
  void end();
  void show(const std::string& text) const;
  const std::vector<PromptRequest>& requests_;
  const eval::ModelTexts& texts_;
  Form form_;
  bool terminal_;
  std::vector<Answer> answers_;
  size_t current_ = 0;
};

// Text of a model, for a terminal: no control character but line ends and tabs.
std::string without_controls(const std::string& text);

}  // namespace ashlar::cli
