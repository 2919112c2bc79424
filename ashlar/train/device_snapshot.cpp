#include "ashlar/train/device_snapshot.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "ashlar/core/copy_bytes.h"
#include "ashlar/core/error.h"

namespace ashlar::train {

DeviceSnapshot::DeviceSnapshot(kernels::gpu::SideCopies& copies)
    : copies_(copies), slot_bytes_(size_t(copies.num_slots())) {}

void DeviceSnapshot::follow() {
  copies_.follow_work();
  const std::lock_guard lock(mutex_);
  ++num_unqueued_;
  is_held_ = false;
}

void DeviceSnapshot::cancel() {
  {
    const std::lock_guard lock(mutex_);
    ASHLAR_ASSERT(num_unqueued_ > 0);
    --num_unqueued_;
  }
  changed_.notify_all();
}

void DeviceSnapshot::before_update() {
  {
    std::unique_lock lock(mutex_);
    if (is_held_) return;
    changed_.wait(lock, [&] { return num_unqueued_ == 0; });
    is_held_ = true;
  }
  copies_.hold_work();
}

void DeviceSnapshot::begin(std::span<const checkpoint::FilePlan> files) {
  runs_.clear();
  next_run_ = 0;
  queued_ = read_ = at_ = 0;
  for (const checkpoint::FilePlan& file : files)
    for (const checkpoint::FilePlan::Source& source : file.sources)
      if (source.tensor.device == Device::kGpu) add_runs(source);
  queue_ahead();
}

// The runs of a source in the order of its bytes (checkpoint::HostSource).
void DeviceSnapshot::add_runs(const checkpoint::FilePlan::Source& source) {
  if (source.bytes == 0) return;
  for (int64_t number = 0; number < source.bytes / source.run_bytes; ++number) {
    int64_t run = number, at = 0;
    for (size_t d = source.outer.size(); d-- > 0;) {
      at += run % source.outer[d].count * source.outer[d].stride_bytes;
      run /= source.outer[d].count;
    }
    runs_.push_back({source.tensor.data + at, source.run_bytes});
  }
}

void DeviceSnapshot::queue_ahead() {
  while (next_run_ < runs_.size() && queued_ - read_ < copies_.num_slots())
    fill_slot(queued_++ % copies_.num_slots());
  if (next_run_ == runs_.size()) tell_queued();
}

void DeviceSnapshot::fill_slot(int64_t slot) {
  int64_t used = 0;
  while (next_run_ < runs_.size() && used < copies_.slot_bytes()) {
    Run& run = runs_[next_run_];
    const int64_t bytes = std::min(run.bytes, copies_.slot_bytes() - used);
    copies_.queue(slot, used, run.from, bytes);
    used += bytes;
    run.from += bytes;
    run.bytes -= bytes;
    if (run.bytes == 0) ++next_run_;
  }
  copies_.mark(slot);
  slot_bytes_[size_t(slot)] = used;
}

void DeviceSnapshot::read(const checkpoint::FilePlan::Source& source, int64_t offset,
                          std::span<std::byte> out) {
  if (source.tensor.device != Device::kGpu)
    return checkpoint::HostSource().read(source, offset, out);
  while (!out.empty()) {
    ASHLAR_ASSERT(read_ < queued_);
    const int64_t slot = read_ % copies_.num_slots();
    if (at_ == 0) await(slot);
    const int64_t left = slot_bytes_[size_t(slot)] - at_;
    const size_t count = std::min(out.size(), size_t(left));
    copy_bytes(out.data(), copies_.slot(slot) + at_, count);
    out = out.subspan(count);
    at_ += int64_t(count);
    if (int64_t(count) < left) continue;
    at_ = 0;
    ++read_;
    queue_ahead();
  }
}

// Asks again and again: a wait for the GPU would stop its work, or wait for it.
void DeviceSnapshot::await(int64_t slot) const {
  auto pause = std::chrono::microseconds(20);
  for (; !copies_.is_done(slot); pause = std::min(2 * pause, std::chrono::microseconds(1000)))
    std::this_thread::sleep_for(pause);
}

// Slots of a snapshot that was not read whole are free again when their copies have been made.
void DeviceSnapshot::end() noexcept {
  try {
    if (read_ < queued_) await((queued_ - 1) % copies_.num_slots());
  } catch (const Error&) {  // the step after this one fails for the same reason
  }
  read_ = queued_;
  tell_queued();
  told_ = false;  // of the next snapshot
}

// Once for each snapshot.
void DeviceSnapshot::tell_queued() {
  if (!std::exchange(told_, true)) cancel();  // nothing of it is left to wait for
}

}  // namespace ashlar::train
