// Copies from the memory of a GPU to the host beside its work, in an order of their own: nothing
// waits for them but what is told to.
//
//   follow_work()   copies queued from now on read what all work queued before leaves
//   queue(), mark() copies into a slot of pinned memory, and the end of the slot
//   is_done()       whether the copies of a slot have been made; it does not wait
//   hold_work()     work queued from now on runs after the copies queued before: the GPU waits for
//                   that, the host does not
//
// Memory   the slots, pinned and taken once (Tag::kSaved of the allocator).
// Errors   kDevice if a copy failed, or if the GPU refuses the second order.
// Threads  one at a time, but for follow_work() and hold_work(), which any thread may call.
#pragma once

#include <cstdint>

#include "ashlar/tensor/allocator.h"

namespace ashlar::device {
struct SideOrder;
}

namespace ashlar::kernels::gpu {

class SideCopies {
 public:
  static constexpr int64_t kSlotBytes = int64_t{4} << 20;
  static constexpr int64_t kMostSlots = 64;
  // The slots for copies of so many bytes.
  static int64_t num_slots_for(int64_t bytes);

  SideCopies(Allocator& pinned, int64_t num_slots, int64_t slot_bytes = kSlotBytes);
  ~SideCopies();  // the copies must be done
  SideCopies(const SideCopies&) = delete;

  int64_t num_slots() const { return num_slots_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  const std::byte* slot(int64_t number) const;

  void follow_work();
  void queue(int64_t slot, int64_t offset, const std::byte* from, int64_t bytes);
  void mark(int64_t slot);
  bool is_done(int64_t slot) const;
  void hold_work();

 private:
  const int64_t num_slots_, slot_bytes_;
  const Buffer memory_;
  device::SideOrder* const order_;
};

}  // namespace ashlar::kernels::gpu
