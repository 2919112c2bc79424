// The memory of a GPU, copies between it and the host, and its clock.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"
#include "ashlar/core/text.h"
#include "ashlar/kernels/gpu.h"
#include "ashlar/kernels/gpu/device.h"

namespace ashlar::kernels::gpu {
namespace {

constexpr int64_t kReservationUnit = int64_t{2} << 20;

void check_copy(const std::string& error) {
  ASHLAR_REQUIRE(error.empty(), kDevice, "the GPU did not copy memory: {}", error);
}

}  // namespace

Reservation::Reservation(int64_t size_bytes)
    : size_bytes_(round_up(std::max<int64_t>(size_bytes, 1), kReservationUnit)),
      base_(static_cast<std::byte*>(device::take(size_t(size_bytes_)))),
      free_{{0, size_bytes_}} {
  ASHLAR_REQUIRE(base_, kMemory,
                 "the GPU has no room for {}, which is planned; other programs may hold its "
                 "memory",
                 format_bytes(size_bytes_));
}

Reservation::~Reservation() {
  device::give(base_);
}

std::byte* Reservation::take(int64_t size_bytes) {
  ASHLAR_ASSERT(size_bytes > 0 && size_bytes % kGpuAlign == 0);
  std::byte* data;
  {
    const std::lock_guard lock(mutex_);
    const auto range = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& r) { return r.second >= size_bytes; });
    if (range == free_.end()) return nullptr;
    const auto [begin, bytes] = *range;
    free_.erase(range);
    if (bytes > size_bytes) free_[begin + size_bytes] = bytes - size_bytes;
    data = base_ + begin;
  }
  check_copy(device::fill_zero(data, size_t(size_bytes)));
  return data;
}

void Reservation::give(std::byte* data, int64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  auto range = free_.emplace(data - base_, size_bytes).first;
  const auto next = std::next(range);
  if (next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != range->first) return;
  before->second += range->second;
  free_.erase(range);
}

void Reservation::copy_to_host(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) check_copy(device::copy_bytes(to, from, size_t(bytes)));
}

void Reservation::copy_from_host(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0) check_copy(device::copy_bytes(to, from, size_t(bytes)));
}

std::byte* PinnedMemory::take(int64_t size_bytes) {
  void* data = device::take_pinned(size_t(size_bytes));
  return data ? static_cast<std::byte*>(std::memset(data, 0, size_t(size_bytes))) : nullptr;
}

void PinnedMemory::give(std::byte* data, int64_t) {
  device::give_pinned(data);
}

Stream::Stream(Allocator& pinned) : room_(pinned.allocate(kRoomBytes, Tag::kInput)) {}

std::byte* Stream::room_for(int64_t bytes) {
  ASHLAR_ASSERT(bytes <= kRoomBytes);
  if (used_bytes_ + bytes > kRoomBytes) wait();
  std::byte* data = room_.data() + used_bytes_;
  used_bytes_ = round_up(used_bytes_ + bytes, kHostAlign);
  return data;
}

void Stream::wait() {
  check_copy(device::wait());
  ++num_waits_;
  used_bytes_ = 0;
}

void Stream::upload(std::byte* to, const void* from, int64_t bytes) {
  for (int64_t done = 0, part = 0; done < bytes; done += part) {
    part = std::min(bytes - done, kRoomBytes);
    std::byte* pinned = room_for(part);
    std::memcpy(pinned, static_cast<const std::byte*>(from) + done, size_t(part));
    check_copy(device::queue_copy(to + done, pinned, size_t(part)));
  }
}

void Stream::download(std::span<const Download> list) {
  std::vector<Download> queued;  // from pinned memory
  const auto finish = [&] {
    wait();
    for (const Download& d : queued) std::memcpy(d.to, d.from, size_t(d.bytes));
    queued.clear();
  };
  for (const Download& d : list)
    for (int64_t done = 0, part = 0; done < d.bytes; done += part) {
      part = std::min(d.bytes - done, kRoomBytes);
      if (used_bytes_ + part > kRoomBytes) finish();
      std::byte* pinned = room_for(part);
      check_copy(device::queue_copy(pinned, d.from + done, size_t(part)));
      queued.push_back({static_cast<std::byte*>(d.to) + done, pinned, part});
    }
  if (!queued.empty()) finish();
}

EventClock::~EventClock() {
  for (void* event : events_)
    if (event) device::give_event(event);
}

// Called where a kernel's Scope ends, it throws nothing: the event of a mark that failed is null.
void EventClock::mark() {
  if (num_marks_ == events_.size()) events_.push_back(nullptr);
  void*& event = events_[num_marks_++];
  if (!event) event = device::make_event();
  if (!event || device::record_event(event).empty()) return;
  device::give_event(event);
  event = nullptr;
}

std::vector<double> EventClock::read() {
  if (num_marks_ == 0) return {};
  stream_.wait();
  mark();
  const double last_s = Trace::now_s();
  stream_.wait();
  const std::span marked(events_.data(), std::exchange(num_marks_, 0));
  ASHLAR_REQUIRE(std::find(marked.begin(), marked.end(), nullptr) == marked.end(), kDevice,
                 "the GPU did not record all events of the trace; record fewer steps");
  // Drivers count in single precision, so times are taken from an event that is never far.
  constexpr size_t kMarksOfAnchor = 1000;
  size_t anchor = 0;
  double anchor_s = 0;
  std::vector<double> moments;
  for (size_t i = 0; i < marked.size(); ++i) {
    double after_s = 0;
    const std::string error = device::seconds_between(marked[anchor], marked[i], after_s);
    ASHLAR_REQUIRE(error.empty(), kDevice, "the GPU has no time of an event: {}", error);
    moments.push_back(anchor_s + after_s);
    if (i % kMarksOfAnchor != 0) continue;
    anchor = i;
    anchor_s = moments.back();
  }
  const double first_s = last_s - moments.back();
  moments.pop_back();
  for (double& moment : moments) moment += first_s;
  return moments;
}

GpuMemory::GpuMemory(int64_t device_bytes)
    : reservation_(device_bytes),
      device_(reservation_),
      pinned_(pinned_memory_),
      stream_(pinned_) {}

}  // namespace ashlar::kernels::gpu
