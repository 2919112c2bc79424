#include "ashlar/kernels/side_copies.h"

#include <algorithm>

#include "ashlar/core/error.h"
#include "ashlar/core/rounding.h"
#include "ashlar/kernels/gpu/device.h"

namespace ashlar::kernels::gpu {
namespace {

void check_side(const std::string& error) {
  ASHLAR_REQUIRE(error.empty(), kDevice, "the GPU did not copy memory for a save: {}", error);
}

}  // namespace

int64_t SideCopies::num_slots_for(int64_t bytes) {
  return std::min(kMostSlots, ceil_div(bytes, kSlotBytes));
}

SideCopies::SideCopies(Allocator& pinned, int64_t num_slots, int64_t slot_bytes)
    : num_slots_(num_slots),
      slot_bytes_(slot_bytes),
      memory_(pinned.allocate(num_slots * slot_bytes, Tag::kSaved)),
      order_(device::take_side_order(int(num_slots))) {
  ASHLAR_ASSERT(num_slots > 0 && slot_bytes > 0);
  ASHLAR_REQUIRE(order_, kDevice, "the GPU refuses a second order of copies, for saves");
}

SideCopies::~SideCopies() {
  device::give_side_order(order_);
}

const std::byte* SideCopies::slot(int64_t number) const {
  return memory_.data() + number * slot_bytes_;
}

void SideCopies::follow_work() {
  check_side(device::follow_work(order_));
}

void SideCopies::queue(int64_t slot, int64_t offset, const std::byte* from, int64_t bytes) {
  ASHLAR_ASSERT(0 <= slot && slot < num_slots_ && offset + bytes <= slot_bytes_);
  std::byte* const to = memory_.data() + slot * slot_bytes_ + offset;
  check_side(device::queue_side_copy(order_, to, from, size_t(bytes)));
}

void SideCopies::mark(int64_t slot) {
  check_side(device::set_mark(order_, int(slot)));
}

bool SideCopies::is_done(int64_t slot) const {
  bool done = false;
  check_side(device::has_passed(order_, int(slot), &done));
  return done;
}

void SideCopies::hold_work() {
  check_side(device::hold_work(order_));
}

}  // namespace ashlar::kernels::gpu
