#include "ashlar/eval/tasks.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "ashlar/core/fields.h"
#include "ashlar/core/lines.h"
#include "ashlar/core/utf8.h"
#include "ashlar/eval/answer_text.h"

namespace ashlar::eval {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";
constexpr std::string_view kInvalidAnswer = "[invalid]";

std::string stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1));
}

std::string with_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at; (at = text.find(from)) != text.npos; text.remove_prefix(at + from.size()))
    out.append(text.substr(0, at)).append(to);
  return out.append(text);
}

// Marks of the articles that HellaSwag is made of: "[title]" becomes a full stop, other marks and
// double spaces go.
std::string without_marks(std::string_view text) {
  std::string out = with_all(stripped(text), " [title]", ". ");
  for (size_t begin = 0; (begin = out.find('[', begin)) != out.npos;) {
    const size_t end = out.find(']', begin);
    if (end == out.npos) break;
    const size_t line = out.find('\n', begin);
    if (line < end)
      ++begin;  // a mark stays within its line
    else
      out.erase(begin, end - begin + 1);
  }
  return with_all(out, "  ", " ");
}

// As Python's capitalize, for ASCII letters.
std::string capitalized(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) text[i] = char(i == 0 ? std::toupper(c) : std::tolower(c));
  }
  return text;
}

std::vector<std::string> texts_in(const Fields& row, std::string_view key) {
  std::vector<std::string> texts;
  for (const Json& item : row.array(key)) {
    if (!item.is_string()) row.fail("{} holds {}; expected strings", key, shown(item));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

void add_choices(const Fields& row, const std::vector<std::string>& choices, int64_t answer,
                 Question& question) {
  if (choices.size() < 2) row.fail("{} choices; expected at least 2", choices.size());
  if (answer < 0 || answer >= int64_t(choices.size()))
    row.fail("the answer is choice {} of {}, counted from 0", answer, choices.size());
  for (const std::string& choice : choices) {
    if (choice.empty()) row.fail("a choice is empty");
    question.continuations.push_back(" " + choice);
    question.lengths.push_back(num_characters(choice));
  }
  question.answer = answer;
}

// A number, or a string with one, as the files of HellaSwag have it.
int64_t index_in(const Fields& row, std::string_view key) {
  const Json& value = row.at(key);
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.size() == 1 && std::isdigit(static_cast<unsigned char>(text[0]))) return text[0] - '0';
  }
  return row.integer(key, 0, 99);
}

Question hellaswag(const Fields& row) {
  Question question;
  const std::string context =
      fmt::format("{} {}", row.text("ctx_a"), capitalized(row.text("ctx_b")));
  question.context = without_marks(row.text("activity_label") + ": " + context);
  std::vector<std::string> endings = texts_in(row, "endings");
  for (std::string& ending : endings) ending = without_marks(ending);
  add_choices(row, endings, index_in(row, "label"), question);
  return question;
}

Question arc(const Fields& row) {
  Question question;
  question.context = "Question: " + row.text("question") + "\nAnswer:";
  const Fields choices = row.object("choices");
  const std::vector<std::string> labels = texts_in(choices, "label");
  const std::vector<std::string> texts = texts_in(choices, "text");
  if (labels.size() != texts.size())
    row.fail("{} labels for {} choices", labels.size(), texts.size());
  const auto answer = std::ranges::find(labels, row.text("answerKey"));
  if (answer == labels.end()) row.fail("answerKey is no label of a choice");
  add_choices(row, texts, answer - labels.begin(), question);
  return question;
}

Question mmlu(const Fields& row) {
  Question question;
  if (row.has("subject"))
    question.description =
        fmt::format("The following are multiple choice questions (with answers) about {}.\n\n",
                    with_all(row.text("subject"), "_", " "));
  question.context = question.description + stripped(row.text("question"));
  std::vector<std::string> letters;
  for (const std::string& choice : texts_in(row, "choices")) {
    if (letters.size() == 26) row.fail("more than 26 choices");
    letters.push_back(std::string(1, char('A' + letters.size())));
    question.context += fmt::format("\n{}. {}", letters.back(), choice);
  }
  question.context += "\nAnswer:";
  add_choices(row, letters, index_in(row, "answer"), question);
  return question;
}

Question lambada(const Fields& row) {
  const std::string& text = row.text("text");
  const size_t space = text.rfind(' ');
  if (space == text.npos || space == 0 || space + 1 == text.size())
    row.fail("text is {}; expected words with single spaces between them", shown(row.at("text")));
  Question question;
  question.context = text.substr(0, space);
  question.continuations = {text.substr(space)};
  question.lengths = {num_characters(question.continuations[0])};
  return question;
}

Question gsm8k(const Fields& row) {
  Question question;
  question.context = "Question: " + row.text("question") + "\nAnswer:";
  question.target = row.text("answer");
  return question;
}

struct KnownTask {
  TaskKind kind;
  std::string_view name;
  Question (*read)(const Fields& row);
};
constexpr std::array<KnownTask, 5> kTasks = {{{TaskKind::kHellaSwag, "hellaswag", hellaswag},
                                              {TaskKind::kArc, "arc", arc},
                                              {TaskKind::kMmlu, "mmlu", mmlu},
                                              {TaskKind::kLambada, "lambada", lambada},
                                              {TaskKind::kGsm8k, "gsm8k", gsm8k}}};

TaskKind kind_of(const Json& row, const Fields& fields) {
  if (row.contains("endings")) return TaskKind::kHellaSwag;
  if (row.contains("answerKey")) return TaskKind::kArc;
  if (row.contains("question") && row.contains("choices")) return TaskKind::kMmlu;
  if (row.contains("question") && row.contains("answer")) return TaskKind::kGsm8k;
  if (row.contains("text")) return TaskKind::kLambada;
  fields.fail(
      "no row of a known task; expected the members of HellaSwag (endings), ARC "
      "(answerKey), MMLU (question, choices), GSM8K (question, answer) or LAMBADA (text)");
}

// A question with its answer, as it stands before others.  A space comes before the answer; the
// last word of LAMBADA has one of its own besides.
std::string as_shot(const Question& question, TaskKind kind) {
  std::string answer = " " + question.target;
  if (kind == TaskKind::kLambada)
    answer = " " + question.continuations[0];
  else if (kind != TaskKind::kGsm8k)
    answer = question.continuations[size_t(question.answer)];
  return question.context.substr(question.description.size()) + answer + "\n\n";
}

bool is_number(char c, std::string_view more) {
  return std::isdigit(static_cast<unsigned char>(c)) || more.find(c) != more.npos;
}

}  // namespace

std::string_view name_of(TaskKind kind) {
  return kTasks[size_t(kind)].name;
}

Task parse_task(std::string_view lines, const std::string& path) {
  Task task{};
  for_each_line(lines, [&](std::string_view line, int64_t number) {
    if (line.find_first_not_of(kSpaces) == line.npos) return;
    const std::string place = fmt::format("{} line {}", path, number);
    const Json row = parse_json(line, place, ErrorKind::kData);
    const Fields fields(row, place, ErrorKind::kData);
    if (task.questions.empty()) task.kind = kind_of(row, fields);
    task.questions.push_back(kTasks[size_t(task.kind)].read(fields));
  });
  ASHLAR_REQUIRE(!task.questions.empty(), kData, "{}: it holds no question", path);
  return task;
}

void add_shots(Task& task, const Task& examples, int64_t num_shots, const std::string& path) {
  ASHLAR_REQUIRE(examples.kind == task.kind, kData, "{} has examples of {}; expected {}", path,
                 name_of(examples.kind), name_of(task.kind));
  std::vector<std::string> texts;
  for (const Question& example : examples.questions) texts.push_back(as_shot(example, task.kind));
  for (Question& question : task.questions) {
    const std::string own = as_shot(question, task.kind);
    std::string shots;
    int64_t found = 0;
    for (size_t i = 0; i < texts.size() && found < num_shots; ++i) {
      if (examples.questions[i].description != question.description || texts[i] == own) continue;
      shots += texts[i];
      ++found;
    }
    ASHLAR_REQUIRE(found == num_shots, kData, "{} has {} examples {}; expected {}", path, found,
                   question.description.empty() ? "beside the question" : "of a question's subject",
                   num_shots);
    question.context.insert(question.description.size(), shots);
  }
}

const std::vector<std::string>& stops_of_gsm8k() {
  static const std::vector<std::string> kStops = {"Question:", "</s>", "<|im_end|>"};
  return kStops;
}

// lm-eval: #### (\-?[0-9\.\,]+)
std::string strict_number(const std::string& text) {
  constexpr std::string_view kMark = "#### ";
  for (size_t at = 0; (at = text.find(kMark, at)) != text.npos; ++at) {
    const size_t begin = at + kMark.size();
    size_t end = begin;
    if (end < text.size() && text[end] == '-') ++end;
    const size_t digits = end;
    while (end < text.size() && is_number(text[end], ".,")) ++end;
    if (end > digits) return text.substr(begin, end - begin);
  }
  return std::string(kInvalidAnswer);
}

// lm-eval: the last match of (-?[$0-9.,]{2,})|(-?[0-9]+)
std::string last_number(const std::string& text) {
  std::string found(kInvalidAnswer);
  for (size_t at = 0; at < text.size();) {
    const size_t first = text[at] == '-' ? at + 1 : at;
    size_t end = first;
    while (end < text.size() && is_number(text[end], "$.,")) ++end;
    if (end - first < 2)
      for (end = first; end < text.size() && is_number(text[end], "");) ++end;
    if (end == first) {
      ++at;
      continue;
    }
    found = text.substr(at, end - at);
    at = end;
  }
  return found;
}

bool is_exact_match(const std::string& answer, const std::string& target) {
  const auto plain = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
    if (const size_t mark = text.rfind("#### "); mark != text.npos) text.erase(0, mark + 5);
    if (text.ends_with('.')) text.pop_back();
    for (char& c : text) c = char(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  return plain(answer) == plain(target);
}

}  // namespace ashlar::eval
