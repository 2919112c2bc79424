#include "ashlar/cli/answers.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "ashlar/cli/command.h"
#include "ashlar/core/text.h"

namespace ashlar::cli {

std::string without_controls(const std::string& text) {
  std::vector<std::string> parts = split(text, '\t');
  for (std::string& part : parts) part = printable(part, NewLines::kKeep);
  return fmt::format("{}", fmt::join(parts, "\t"));
}

Answers::Answers(const std::vector<PromptRequest>& requests, const eval::ModelTexts& texts,
                 const std::vector<std::string>& stops, Form form)
    : requests_(requests), texts_(texts), form_(form), terminal_(isatty(STDOUT_FILENO) == 1) {
  for (const PromptRequest& request : requests) {
    Answer& answer = answers_.emplace_back();
    if (!texts.tokenizer) continue;
    answer.stream.emplace(*texts.tokenizer, texts.files.added, stops, !form.with_prompt);
    const std::string prompt = answer.stream->follow(request.ids);
    if (form.with_prompt) answer.text = prompt;
  }
  begin();
}

bool Answers::add(const eval::PromptSlots::NewToken& token) {
  const auto number = size_t(token.request);
  Answer& answer = answers_[number];
  answer.made.push_back(token.id);
  std::string piece;
  if (!answer.stream)
    piece = fmt::format("{} ", token.id);
  else if (!requests_[number].spec.stops_at(token.id))
    piece = answer.stream->push(token.id);
  const bool stopped = answer.stream && answer.stream->stopped();
  answer.ended = token.last || stopped;
  if (answer.ended && answer.stream) piece += answer.stream->finish();
  answer.text += piece;
  if (number == current_) show(piece);
  while (current_ < answers_.size() && answers_[current_].ended) end();
  return stopped && !token.last;
}

void Answers::begin() {
  if (form_.many && !form_.json)
    print_part(fmt::format("{}==> {} of {} <==\n", current_ > 0 ? "\n" : "", current_ + 1,
                           answers_.size()));
  show(answers_[current_].text);
}

void Answers::end() {
  const PromptRequest& request = requests_[current_];
  const Answer& answer = answers_[current_];
  if (form_.json) {
    nlohmann::ordered_json line;
    if (form_.many) line["index"] = request.prompt;
    if (form_.samples) line["sample"] = request.sample;
    std::vector<int32_t> ids = request.ids;
    ids.insert(ids.end(), answer.made.begin(), answer.made.end());
    line["ids"] = ids;
    line["text"] = answer.stream ? answer.text : "";
    print_json(line.dump());
  } else {
    print_part("\n");
  }
  if (++current_ < answers_.size()) begin();
}

// Into a file or a pipe everything goes as it is.
void Answers::show(const std::string& text) const {
  if (!form_.json && !text.empty()) print_part(terminal_ ? without_controls(text) : text);
}

}  // namespace ashlar::cli
