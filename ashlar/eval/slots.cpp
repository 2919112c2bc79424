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
  if (!live_.empty()) {
    ids_.clear();
    for (const Request& request : live_) ids_.push_back(request.last_id);
    const std::span<const float> logits = decoder_.feed_each(ids_);
    const size_t V = logits.size() / live_.size();
    for (size_t place = 0; place < live_.size(); ++place)
      make_token(live_[place], logits.subspan(place * V, V), int64_t(place));
    remove_ended();
  }
  start_waiting();
  std::sort(made_.begin(), made_.end(),
            [](const NewToken& a, const NewToken& b) { return a.request < b.request; });
  return made_;
}

void PromptSlots::make_token(Request& request, std::span<const float> logits, int64_t place) {
  request.last_id = sample(request.spec.sampling, request.repetition.penalized(logits, penalized_),
                           decoder_.length(place), scratch_);
  request.repetition.add(request.last_id);
  if (request.spec.scores) request.spec.scores->add(logits, request.last_id);
  ++request.num_made;
  made_.push_back({request.number, request.last_id, request.ended()});
}

// A prompt whose first token ends it makes room for the next at once.
void PromptSlots::start_waiting() {
  for (int64_t started = 0; started < limits_.num_slots; ++started) {
    if (waiting_.empty() || int64_t(live_.size()) == limits_.num_slots) return;
    const auto place = int64_t(live_.size());
    Request& request = live_.emplace_back(std::move(waiting_.front()));
    waiting_.pop_front();
    decoder_.clear(place);
    prefill(request, place);
    if (request.ended()) live_.pop_back();
  }
}

void PromptSlots::prefill(Request& request, int64_t place) {
  TokenScores* scores = request.spec.scores;
  Decoder::OnLogits on_logits;
  size_t next = 1;
  if (scores && scores->of_prompt)
    on_logits = [&](std::span<const float> logits) {
      if (next < request.prompt.size()) scores->add(logits, request.prompt[next]);
      ++next;
    };
  // Nothing follows the last token of a prompt that is only scored.
  const bool makes = request.spec.max_tokens > 0;
  const auto fed = std::span(request.prompt).first(request.prompt.size() - (makes ? 0 : 1));
  std::span<const float> logits;
  if (!fed.empty()) logits = decoder_.feed(fed, place, on_logits);
  request.prompt = {};
  if (makes)
    make_token(request, logits, place);
  else
    made_.push_back({request.number, -1, true});
}

void PromptSlots::remove_ended() {
  for (size_t place = 0; place < live_.size();)
    if (live_[place].ended())
      remove(place);
    else
      ++place;
}

// The last live request takes the place of the one that leaves.
void PromptSlots::remove(size_t place) {
  if (place + 1 < live_.size()) {
    decoder_.move(int64_t(live_.size()) - 1, int64_t(place));
    live_[place] = std::move(live_.back());
  }
  live_.pop_back();
}

void PromptSlots::cancel(int64_t request) {
  std::erase_if(waiting_, [&](const Request& each) { return each.number == request; });
  const auto live = std::ranges::find(live_, request, &Request::number);
  if (live != live_.end()) remove(size_t(live - live_.begin()));
}

}  // namespace ashlar::eval
