#include "ashlar/eval/slots.h"

#include <algorithm>

namespace ashlar::eval {

PromptSlots::PromptSlots(const kernels::Context& ctx, Allocator& allocator, nn::Model& model,
                         const Limits& limits)
    : limits_(limits),
      decoder_(ctx, allocator, model, limits.max_tokens, limits.max_chunk, limits.num_slots) {
  live_.reserve(size_t(limits.num_slots));
  made_.reserve(2 * size_t(limits.num_slots));
  ids_.reserve(size_t(limits.num_slots));
}

int64_t PromptSlots::submit(std::vector<int32_t> prompt, GenerateSpec spec) {
  validate(spec.sampling);
  ASHLAR_ASSERT(!prompt.empty() && (spec.max_tokens > 0 || spec.scores));
  const int64_t length = int64_t(prompt.size()) + (spec.max_tokens > 0 ? spec.max_tokens : -1);
  ASHLAR_REQUIRE(length <= limits_.max_tokens, kConfig,
                 "the sequence reaches {} tokens but the cache holds {}; ask for fewer tokens",
                 length, limits_.max_tokens);
  Repetition repetition(spec.sampling.repetition_penalty, prompt);
  waiting_.push_back({.number = num_submitted_,
                      .prompt = std::move(prompt),
                      .spec = std::move(spec),
                      .repetition = std::move(repetition)});
  return num_submitted_++;
}

std::span<const PromptSlots::NewToken> PromptSlots::step() {
  made_.clear();
  if (!live_.empty()) make_tokens();
  read_prompts();
  std::sort(made_.begin(), made_.end(),
            [](const NewToken& a, const NewToken& b) { return a.request < b.request; });
  return made_;
}

void PromptSlots::make_tokens() {
  ids_.clear();
  for (const Request& request : live_) ids_.push_back(request.last_id);
  const std::span<const float> logits = decoder_.feed_each(ids_);
  const size_t V = logits.size() / live_.size();
  for (size_t place = 0; place < live_.size(); ++place)
    make_token(live_[place], logits.subspan(place * V, V), int64_t(place));
  remove_ended();
}

void PromptSlots::make_token(Request& request, std::span<const float> logits, int64_t place) {
  request.last_id = sample(request.spec.sampling, request.repetition.penalized(logits, penalized_),
                           decoder_.length(place), scratch_);
  request.repetition.add(request.last_id);
  if (request.spec.scores) request.spec.scores->add(logits, request.last_id);
  ++request.num_made;
  made_.push_back({request.number, request.last_id, request.ended()});
}

void PromptSlots::read_prompts() {
  for (auto room = size_t(limits_.max_chunk); room > 0 && begin_reading();) {
    const size_t count = std::min(num_to_read(), size_t(limits_.max_chunk));
    if (count > room) return;
    read_chunk(count);
    room -= count;
  }
}

// Whether there is a prompt to read.
bool PromptSlots::begin_reading() {
  if (reading_) return true;
  if (waiting_.empty() || int64_t(live_.size()) == limits_.num_slots) return false;
  reading_ = std::move(waiting_.front());
  waiting_.pop_front();
  decoder_.clear(int64_t(live_.size()));
  return true;
}

// Nothing follows the last token of a prompt that is only scored.
size_t PromptSlots::num_to_read() const {
  const size_t end = reading_->prompt.size() - (reading_->spec.max_tokens > 0 ? 0 : 1);
  return end - reading_->num_read;
}

void PromptSlots::read_chunk(size_t count) {
  Request& request = *reading_;
  const bool is_last = count == num_to_read();
  std::span<const float> logits;
  if (count > 0) logits = feed_prompt(request, count);
  request.num_read += count;
  if (is_last) begin_answers(logits);
}

namespace {

// The number of likeliest tokens in the scores of its prompt; -1: it wants none.
int64_t scores_of_prompt(const GenerateSpec& spec) {
  return spec.scores && spec.scores->of_prompt ? spec.scores->num_likely : -1;
}

bool read_alike(const GenerateSpec& a, const GenerateSpec& b) {
  return (a.max_tokens > 0) == (b.max_tokens > 0) && scores_of_prompt(a) == scores_of_prompt(b);
}

}  // namespace

// The cache in the place behind those of live requests, and the logits, are those after the prompt.
void PromptSlots::begin_answers(std::span<const float> logits) {
  const auto source = int64_t(live_.size());
  std::vector<Request> answers;
  answers.push_back(std::move(*reading_));
  reading_.reset();
  const auto shares = [&](const Request& next) {
    return next.prompt == answers[0].prompt && read_alike(next.spec, answers[0].spec);
  };
  while (!waiting_.empty() && source + int64_t(answers.size()) < limits_.num_slots &&
         shares(waiting_.front())) {
    answers.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (scores_of_prompt(answers[0].spec) >= 0)
      answers.back().spec.scores->tokens = answers[0].spec.scores->tokens;
  }
  for (Request& request : answers) {
    request.prompt = {};
    const auto place = int64_t(live_.size());
    if (place != source) decoder_.duplicate(source, place);
    if (request.spec.max_tokens > 0)
      make_token(request, logits, place);
    else
      made_.push_back({request.number, -1, true});
    if (!request.ended()) live_.push_back(std::move(request));
  }
}

// Returns the logits after the last token of the prompt, if it is among the next `count`.
std::span<const float> PromptSlots::feed_prompt(const Request& request, size_t count) {
  TokenScores* scores =
      request.spec.scores && request.spec.scores->of_prompt ? request.spec.scores : nullptr;
  std::span<const float> last;
  size_t next = scores ? request.num_read + 1 : request.prompt.size();
  const auto fed = std::span(request.prompt).subspan(request.num_read, count);
  decoder_.feed(fed, int64_t(live_.size()), next - 1 - request.num_read,
                [&](std::span<const float> logits) {
                  if (next < request.prompt.size()) scores->add(logits, request.prompt[next]);
                  ++next, last = logits;
                });
  return last;
}

void PromptSlots::remove_ended() {
  for (size_t place = 0; place < live_.size();)
    if (live_[place].ended())
      remove(place);
    else
      ++place;
}

// The last live request takes the place of the one that leaves, and the one behind it moves up.
void PromptSlots::remove(size_t place) {
  if (place + 1 < live_.size()) {
    decoder_.move(int64_t(live_.size()) - 1, int64_t(place));
    live_[place] = std::move(live_.back());
  }
  live_.pop_back();
  if (reading_) decoder_.move(int64_t(live_.size()) + 1, int64_t(live_.size()));
}

void PromptSlots::cancel(int64_t request) {
  std::erase_if(waiting_, [&](const Request& each) { return each.number == request; });
  if (reading_ && reading_->number == request) reading_.reset();
  const auto live = std::ranges::find(live_, request, &Request::number);
  if (live != live_.end()) remove(size_t(live - live_.begin()));
}

}  // namespace ashlar::eval
