// The emulated device as the host sees it: waits and late copies, for tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::device::emulator {

// The calls so far that returned only when the device had done its work.
int64_t num_host_waits();

// Makes the copies of the first order that are queued.
void run_queued();
void copy_on_device(void* to, const void* from, size_t bytes);

// Copies of a side order are made as late as they may: when work is told to wait for them, or when
// the host has asked more than so often whether they are done.
inline constexpr int64_t kSidePatience = 100;
void set_side_patience(int64_t questions);  // of all orders

// Whether the device has no room for another event.
void refuse_events(bool refuses);

}  // namespace ashlar::device::emulator
