// Judges a model: answers of tasks, and the likelihood of a text.
//
// Source   lm-evaluation-harness 0.4: acc takes the choice with the largest log-likelihood, of
//          equal ones the first; acc_norm divides it by the characters of the choice; the last word
//          counts as found where greedy decoding gives all its tokens.  A text is cut into windows
//          of as many tokens as the model is meant for: the first is read behind the id that begins
//          texts, each other one behind the last token before it, and the last window is filled
//          with tokens that were scored already.
// Cost     the beginning that all choices of a question share is read once.
// Numerics F32 logits, sums in fp64.  A result does not depend on the other questions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ashlar/core/log.h"
#include "ashlar/data/text_files.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/eval/load.h"
#include "ashlar/eval/slots.h"
#include "ashlar/eval/tasks.h"

namespace ashlar::eval {

// Ids of which the last num_scored are scored, each after all before it.
struct ScoredIds {
  std::vector<int32_t> ids;
  int64_t num_scored = 0;  // at least 1, fewer than ids
  size_t first_scored() const { return ids.size() - size_t(num_scored); }
};

// Where texts become ids.  kData for an id outside the model's vocabulary.
struct TextEncoding {
  const data::Tokenizer& tokenizer;
  const data::TextFiles& files;
  const ModelSource& source;
  int64_t max_length;  // tokens that the model is meant for; the beginning of longer ones is cut

  // A context and what follows it; spaces at the end of the context go to what follows.
  // kData if that adds no token.
  ScoredIds pair(const std::string& context, const std::string& continuation) const;
  // A prompt that leaves room for new tokens.
  std::vector<int32_t> prompt(const std::string& text, int64_t num_new) const;
  // The windows of a text.
  std::vector<ScoredIds> windows(const std::string& text, int64_t length) const;
};

// The result of a question, or of a window of a text.
struct JudgedRow {
  std::string key;                        // a checksum of what was asked
  std::map<std::string, double> metrics;  // by name: "acc" 1 or 0, "loss" in nats
  std::vector<double> logprobs;           // of the continuations; of a window, one
  std::string text;                       // an answer that was generated
  int64_t num_scored = 1;                 // tokens of a window, by which its loss counts
};

struct JudgedTask {
  std::string task;
  std::vector<JudgedRow> rows;
  // By name: the mean over rows, or over tokens, words or bytes of a text, and its standard error
  // where it is a mean over rows of which there are at least 2.
  struct Result {
    double value;
    double error = -1.0;  // below 0: none
  };
  std::map<std::string, Result> results;
};

// New tokens of an answer that is generated, at most: lm-eval's usual number.
inline constexpr int64_t kAnswerTokens = 256;
// The longest sequence that the model reads to judge the task, with its new tokens.
int64_t longest_of(const TextEncoding& encoding, const Task& task);

// Places of the Decoder that judges the task by likelihoods.
int64_t places_for(const Task& task);

// Judges a task whose answers are generated, or one of the others.
JudgedTask judge_answers(PromptSlots& slots, const TextEncoding& encoding, const Task& task,
                         std::span<const int32_t> stop_ids, Log& log);
JudgedTask judge_likelihoods(Decoder& decoder, const TextEncoding& encoding, const Task& task,
                             Log& log);
JudgedTask judge_text(Decoder& decoder, const TextEncoding& encoding, const std::string& text,
                      int64_t length, Log& log);

}  // namespace ashlar::eval
