// Tasks that judge a model, read from JSON lines in the fields of the published data sets.
//
//   HellaSwag  {"activity_label", "ctx_a", "ctx_b", "endings", "label"}       choice of an ending
//   ARC        {"question", "choices": {"text", "label"}, "answerKey"}        choice of an answer
//   MMLU       {"question", "choices", "answer": a number, "subject"}         choice of a letter
//   LAMBADA    {"text"}                                                       the last word
//   GSM8K      {"question", "answer": "... #### 18"}                          a number, generated
//
// Source   lm-evaluation-harness 0.4: its tasks of these names (LAMBADA's is OpenAI's).  Prompts,
//          choices and examples are its own, byte for byte; examples are the first of a file, as
//          its sampler first_n takes them.
// Accepts  other members, and empty lines.  The first row says which task the file holds.
// Errors   kData, "FILE line N: ...".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::eval {

enum class TaskKind : uint8_t { kHellaSwag, kArc, kMmlu, kLambada, kGsm8k };
std::string_view name_of(TaskKind kind);  // "hellaswag"

struct Question {
  std::string description;  // of the subject; the context begins with it
  std::string context;
  // The texts behind the context: each of the choices, or the last word.  Empty where the answer
  // is generated.
  std::vector<std::string> continuations;
  std::vector<int64_t> lengths;  // of the choices in characters, for acc_norm
  int64_t answer = 0;            // the index of the right choice
  std::string target;            // of a generated answer
};

struct Task {
  TaskKind kind;
  std::vector<Question> questions;  // at least one
};

Task parse_task(std::string_view lines, const std::string& path);

// Puts the first num_shots examples with their answers before every question, behind its
// description: those that have the same description, and are not the question itself.
// kData, naming `path`, the examples' file, if they are of another task or too few.
void add_shots(Task& task, const Task& examples, int64_t num_shots, const std::string& path);

// Where a generated answer ends.
const std::vector<std::string>& stops_of_gsm8k();
// The number in an answer to GSM8K, as lm-eval's two filters take it: the one behind "#### ", or
// the last one in the text; "[invalid]" where there is none.
std::string strict_number(const std::string& text);
std::string last_number(const std::string& text);
// Whether an answer is the target, without commas, dollars, a full stop at the end, and everything
// up to the last "#### ".
bool is_exact_match(const std::string& answer, const std::string& target);

}  // namespace ashlar::eval
