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
  ASHLAR_ASSERT(!prompt.empty() && spec.max_tokens > 0);
  const int64_t length = int64_t(prompt.size()) + spec.max_tokens;
  ASHLAR_REQUIRE(length <= limits_.max_tokens, kConfig,
                 "the sequence reaches {} tokens but the cache holds {}; ask for fewer tokens",
                 length, limits_.max_tokens);
  waiting_.push_back(
      {.number = num_submitted_, .prompt = std::move(prompt), .spec = std::move(spec)});
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
  request.last_id = sample(request.spec.sampling, logits, decoder_.length(place), scratch_);
  ++request.num_made;
  made_.push_back({request.number, request.last_id, request.ended()});
}

// A prompt whose first token ends it makes room for the next at once.
void PromptSlots::start_waiting() {
  while (!waiting_.empty() && int64_t(live_.size()) < limits_.num_slots) {
    const auto place = int64_t(live_.size());
    Request& request = live_.emplace_back(std::move(waiting_.front()));
    waiting_.pop_front();
    decoder_.clear(place);
    make_token(request, decoder_.feed(request.prompt, place), place);
    request.prompt = {};
    if (request.ended()) live_.pop_back();
  }
}

// The last live request takes the place of one that has ended.
void PromptSlots::remove_ended() {
  for (size_t place = 0; place < live_.size();) {
    if (!live_[place].ended()) {
      ++place;
      continue;
    }
    if (place + 1 < live_.size()) {
      decoder_.move(int64_t(live_.size()) - 1, int64_t(place));
      live_[place] = std::move(live_.back());
    }
    live_.pop_back();
  }
}

}  // namespace ashlar::eval
