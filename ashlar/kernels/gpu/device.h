// The device of this program, as host code sees it: its memory, its two orders, its events.  An
// emulator and every vendor define these functions.
//
// Errors   Functions that return text return "" if all went well.
// Order    Launches, fills with zeros, queued copies and records of events run one after another
//          in the order of the calls, which return before that.  copy_bytes and wait return when
//          all of them have run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ashlar::device {

enum class ElementType : int32_t { kF32, kBF16, kF64, kI64 };

// Elements in the memory of the device; data null: absent.
struct Elements {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
};

// The device behind this build: "emulator, warps of 32", "CUDA", "HIP".
std::string description();
// Whose libraries work on the memory of this device: "host", "NVIDIA" or "AMD".
std::string vendor();
int warp_size();
// "" if there is a device; else the reason.
std::string missing();
// The chip that an emulator stands for, by its name in core/device_spec.h; "": the device is none.
std::string emulated_chip();

void* take(size_t bytes);  // null: out of memory
void give(void* data);
std::string fill_zero(void* data, size_t bytes);
std::string copy_bytes(void* to, const void* from, size_t bytes);  // either may be host memory
// Memory of the host that the device reads and writes by itself; null: out of memory.
void* take_pinned(size_t bytes);
void give_pinned(void* data);
std::string queue_copy(void* to, const void* from, size_t bytes);  // one of the two is pinned
std::string wait();

// An event keeps the moment at which the device came to its last record; null: none could be made.
void* make_event();
void give_event(void* event);
std::string record_event(void* event);
// From the record of one event to that of a later one, both of which were waited for.
std::string seconds_between(void* earlier, void* later, double& seconds);

// A second order: copies to pinned memory that run beside the work above, one after another.  Every
// function returns before its effect.
struct SideOrder;
SideOrder* take_side_order(int num_marks);  // null: the device refuses it
void give_side_order(SideOrder*);           // its copies have run
std::string follow_work(SideOrder*);        // later copies run after all work queued until now
std::string queue_side_copy(SideOrder*, void* pinned, const void* from, size_t bytes);
// Sets a mark, by number, behind the copies queued until now.  passed: they have run.
std::string set_mark(SideOrder*, int mark);
std::string has_passed(SideOrder*, int mark, bool* passed);
std::string hold_work(SideOrder*);  // later work runs after all copies queued until now

// A device runs threads in the order it likes; the emulator has several orders to choose from.
int num_modes();
std::string select_mode(int number);  // returns its name

}  // namespace ashlar::device
