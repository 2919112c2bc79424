#include "ashlar/tensor/trace.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "ashlar/core/clock.h"

namespace ashlar {

double Trace::now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

int64_t Trace::List::add(const TraceEvent& event) {
  if (list.size() == capacity) {
    ++num_dropped;
    return -1;
  }
  list.push_back(event);
  return int64_t(list.size()) - 1;
}

void Trace::List::make_room(std::optional<int64_t> more) {
  capacity = more ? list.size() + size_t(*more) : SIZE_MAX;
  if (more) list.reserve(capacity);
}

void Trace::List::clear() {
  list.clear();
  num_dropped = 0;
}

void Trace::start(std::optional<TraceRoom> room) {
  events_.make_room(room ? std::optional(room->events) : std::nullopt);
  message_capacity_ = room ? messages_.size() + size_t(room->messages) : SIZE_MAX;
  if (room) messages_.reserve(message_capacity_);
  for (const auto& lane : lanes_) {
    ASHLAR_ASSERT(room || !lane->has_thread);
    lane->make_room(room ? std::optional(room->lane_events) : std::nullopt);
  }
  recording_ = true;
}

void Trace::clear() {
  events_.clear();
  messages_.clear();
  num_dropped_messages_ = 0;
  for (const auto& lane : lanes_) lane->clear();
}

void Trace::release() {
  clear();
  events_.list.shrink_to_fit();
  messages_.shrink_to_fit();
  for (const auto& lane : lanes_) lane->list.shrink_to_fit();
}

void Trace::enter(std::string_view phase, int64_t block) {
  const int16_t index = index_of(phase);
  auto found = std::find(phases_.begin(), phases_.end(), index);
  if (found == phases_.end()) {
    ASHLAR_ASSERT(phases_.size() <= std::numeric_limits<uint8_t>::max());
    found = phases_.insert(phases_.end(), index);
  }
  place_.phase = uint8_t(found - phases_.begin());
  place_.block = int16_t(block);
  place_.branch = TracePlace::Branch::kNone;
}

int64_t Trace::begin(TraceEvent event) {
  event.place = place_;
  event.first_message = int32_t(messages_.size());
  event.start_s = now_s();
  return events_.add(event);
}

void Trace::end(int64_t event) {
  if (event >= 0) events_.list[size_t(event)].end_s = now_s();
}

void Trace::set_ticket(int64_t event, int64_t ticket) {
  if (event >= 0) events_.list[size_t(event)].ticket = ticket;
}

void Trace::add_message(int64_t event, const TraceMessage& message) {
  if (event < 0) return;
  ASHLAR_ASSERT(event + 1 == int64_t(events_.list.size()));
  if (messages_.size() == message_capacity_) {
    ++num_dropped_messages_;
    return;
  }
  messages_.push_back(message);
  ++events_.list.back().num_messages;
}

void Trace::add_to_lane(TraceEvent event) {
  event.start_s = event.end_s = now_s();
  lanes_[size_t(event.lane)]->add(event);
}

int16_t Trace::index_of(std::string_view text) {
  if (const auto found = index_of_text_.find(text); found != index_of_text_.end())
    return found->second;
  ASHLAR_ASSERT(texts_.size() < size_t(std::numeric_limits<int16_t>::max()));
  const auto index = int16_t(texts_.size());
  texts_.push_back(index_of_text_.emplace(text, index).first->first);
  return index;
}

int16_t Trace::add_lane(std::string name, bool has_thread) {
  ASHLAR_ASSERT(!recording_);
  auto lane = std::make_unique<Lane>();
  lane->name = std::move(name);
  lane->has_thread = has_thread;
  lanes_.push_back(std::move(lane));
  return int16_t(lanes_.size() - 1);
}

int16_t Trace::add_group(TraceGroup group) {
  groups_.push_back(std::move(group));
  return int16_t(groups_.size() - 1);
}

int64_t Trace::num_dropped() const {
  int64_t sum = events_.num_dropped + num_dropped_messages_;
  for (const auto& lane : lanes_) sum += lane->num_dropped;
  return sum;
}

TraceRoom Trace::size() const {
  TraceRoom size{int64_t(events_.list.size()), 0, int64_t(messages_.size())};
  for (const auto& lane : lanes_)
    size.lane_events = std::max(size.lane_events, int64_t(lane->list.size()));
  return size;
}

}  // namespace ashlar
