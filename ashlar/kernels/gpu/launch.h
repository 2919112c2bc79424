// The border between host code and device code: plain structs, memory, and one function per kernel.
// Host code includes this header and no other of device code, so that it is compiled once for the
// emulator and for every vendor.
//
// Errors   Functions that return text return "" if all went well.
// Order    Launches run one after another in the order of the calls; copy_bytes waits for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ashlar::device {

// The device behind this build: "emulator, warps of 32", "CUDA", "HIP".
std::string description();
int warp_size();
// "" if there is a device; else the reason.
std::string missing();

void* take(size_t bytes);  // null: out of memory
void give(void* data);
std::string copy_bytes(void* to, const void* from, size_t bytes);  // either may be host memory

// A device runs threads in the order it likes; the emulator has several orders to choose from.
int num_modes();
std::string select_mode(int number);  // returns its name

}  // namespace ashlar::device
