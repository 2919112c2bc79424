#include "ashlar/tensor/trace.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "ashlar/core/clock.h"

namespace ashlar {

namespace {

// The place by which a pulse shows this phase; nullopt: no phase of training.
std::optional<PulsePlace> pulse_place_of(std::string_view phase) {
  static constexpr std::pair<std::string_view, PulsePlace> kPlaces[] = {
      {"start of step", PulsePlace::kForward},
      {"inputs", PulsePlace::kForward},
      {"forward", PulsePlace::kForward},
      {"loss", PulsePlace::kForward},
      {"recomputation", PulsePlace::kBackward},
      {"backward", PulsePlace::kBackward},
      {"gradients of weights", PulsePlace::kBackward},
      {"reduce", PulsePlace::kReduce},
      {"gradient norm", PulsePlace::kReduce},
      {"optimizer", PulsePlace::kUpdate}};
  for (const auto& [name, place] : kPlaces)
    if (name == phase) return place;
  return std::nullopt;
}

}  // namespace

double Trace::now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

template <typename Item>
int64_t Trace::List<Item>::add(const Item& item) {
  if (list.size() == capacity) {
    ++num_dropped;
    return -1;
  }
  list.push_back(item);
  return size() - 1;
}

template <typename Item>
void Trace::List<Item>::make_room(std::optional<int64_t> more) {
  capacity = more ? list.size() + size_t(*more) : SIZE_MAX;
  if (more) list.reserve(capacity);
}

template <typename Item>
void Trace::List<Item>::clear() {
  list.clear();
  num_dropped = 0;
}

void Trace::start(std::optional<TraceRoom> room) {
  const auto part = [&](int64_t TraceRoom::*size) {
    return room ? std::optional((*room).*size) : std::nullopt;
  };
  events_.make_room(part(&TraceRoom::events));
  messages_.make_room(part(&TraceRoom::messages));
  dims_.make_room(part(&TraceRoom::dims));
  if (device_ && room) spans_.reserve(spans_.size() + size_t(room->events));
  for (const auto& lane : lanes_) {
    ASHLAR_ASSERT(room || !lane->has_thread);
    lane->make_room(part(&TraceRoom::lane_events));
  }
  recording_ = true;
}

void Trace::clear() {
  events_.clear();
  messages_.clear();
  chunk_lists_.clear();
  dims_.clear();
  spans_.clear();
  num_read_ = 0;
  for (const auto& lane : lanes_) lane->clear();
}

void Trace::release() {
  stop();
  clear();
  events_.list.shrink_to_fit();
  messages_.list.shrink_to_fit();
  dims_.list.shrink_to_fit();
  spans_.shrink_to_fit();
  for (const auto& lane : lanes_) lane->list.shrink_to_fit();
}

void Trace::enter(std::string_view phase, int64_t block) {
  const int16_t index = index_of(phase);
  auto found = std::find(phases_.begin(), phases_.end(), index);
  if (found == phases_.end()) {
    ASHLAR_ASSERT(phases_.size() <= std::numeric_limits<uint8_t>::max());
    found = phases_.insert(phases_.end(), index);
    pulse_places_.push_back(pulse_place_of(phase));
    ASHLAR_ASSERT(!pulse_ || pulse_places_.back());
  }
  TracePlace place = this->place();
  place.phase = uint8_t(found - phases_.begin());
  place.block = int16_t(block);
  place.branch = TracePlace::Branch::kNone;
  enter(place);
}

void Trace::enter(const TracePlace& place) {
  place_.store(place, std::memory_order_relaxed);
  if (!pulse_) return;
  if (const std::optional<PulsePlace> shown = pulse_places_[place.phase])
    pulse_->enter_part(*shown, place.block, place.micro_batch);
}

void Trace::enter(TracePlace::Branch branch) {
  TracePlace place = this->place();
  place.branch = branch;
  enter(place);
}

void Trace::enter_micro_batch(int64_t number) {
  TracePlace place = this->place();
  place.micro_batch = int32_t(number);
  enter(place);
}

int64_t Trace::begin(TraceEvent event) {
  const bool is_kernel = event.kind == TraceEvent::Kind::kKernel;
  event.place = place();
  event.first_item = int32_t(is_kernel ? dims_.size() : messages_.size());
  event.start_s = now_s();
  const int64_t number = events_.add(event);
  if (!is_kernel) return number;
  ASHLAR_ASSERT(!device_ || open_kernel_ < 0);  // its marks come in pairs
  open_kernel_ = number;
  if (device_ && number >= 0) {
    spans_.push_back({.event = number});
    device_->mark();
  }
  return number;
}

void Trace::end(int64_t event) {
  if (event < 0) return;
  if (event == open_kernel_) {
    open_kernel_ = -1;
    if (device_) device_->mark();
  }
  events_.list[size_t(event)].end_s = now_s();
}

void Trace::read_device() {
  if (!device_) return;
  const std::vector<double> moments = device_->read();
  ASHLAR_ASSERT(moments.size() == 2 * (spans_.size() - num_read_));
  for (size_t i = 0; i < moments.size(); i += 2) {
    spans_[num_read_].start_s = moments[i];
    spans_[num_read_++].end_s = moments[i + 1];
  }
}

void Trace::set_ticket(int64_t event, int64_t ticket) {
  if (event >= 0) events_.list[size_t(event)].ticket = ticket;
}

void Trace::add_message(int64_t event, const TraceMessage& message) {
  if (event < 0) return;
  ASHLAR_ASSERT(event + 1 == events_.size());
  if (messages_.add(message) >= 0) ++events_.list.back().num_items;
}

void Trace::add_chunks(int64_t event, std::span<const int64_t> counts, int64_t bytes_each) {
  if (event < 0) return;
  ASHLAR_ASSERT(event + 1 == events_.size());
  TraceEvent& post = events_.list.back();
  const std::vector<int>& ranks = group(post.group).world_ranks;
  ASHLAR_ASSERT(counts.size() == ranks.size() && post.num_items == 0);
  const auto chunk = [&](size_t r) {
    return TraceMessage{ranks[r], false, counts[r] * bytes_each};
  };
  uint64_t key = uint64_t(post.group);
  for (const int64_t count : counts)
    key = (key ^ uint64_t(count * bytes_each)) * 0x9E3779B97F4A7C15u ^ key >> 29;
  if (const auto found = chunk_lists_.find(key); found != chunk_lists_.end()) {
    const TraceMessage* stored = messages_.list.data() + found->second;
    size_t r = 0;
    while (r < counts.size() && stored[r] == chunk(r)) ++r;
    if (r == counts.size()) {
      post.first_item = found->second;
      post.num_items = int32_t(counts.size());
      return;
    }
  }
  for (size_t r = 0; r < counts.size(); ++r)
    if (messages_.add(chunk(r)) >= 0) ++post.num_items;
  if (post.num_items == int32_t(counts.size())) chunk_lists_.emplace(key, post.first_item);
}

void Trace::add_dims(int64_t event, const TraceDims& dims) {
  if (event < 0) return;
  ASHLAR_ASSERT(event + 1 == events_.size() && events_.list.back().num_items == 0);
  if (dims_.add(dims) >= 0) events_.list.back().num_items = 1;
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
  int64_t sum = events_.num_dropped + messages_.num_dropped + dims_.num_dropped;
  for (const auto& lane : lanes_) sum += lane->num_dropped;
  return sum;
}

TraceRoom Trace::size() const {
  TraceRoom size{events_.size(), 0, messages_.size(), dims_.size()};
  for (const auto& lane : lanes_) size.lane_events = std::max(size.lane_events, lane->size());
  return size;
}

}  // namespace ashlar
