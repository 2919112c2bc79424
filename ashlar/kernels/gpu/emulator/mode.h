// The orders in which the emulator runs threads, blocks and asynchronous copies, what it has run,
// and what the host may touch.  A kernel whose results depend on the order is wrong.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar::device::emulator {

struct EmulatorMode {
  const char* name;
  int order;            // of threads: 0 forward, 1 reverse, else the seed of a shuffle
  bool greedy;          // the first thread in order that can run goes on; else threads take turns
  bool reverse_blocks;  // the last block runs first
  bool lazy_copies;     // copy_async moves its bytes at the wait that covers it, not at the call
};

// The orders of threads are these three because faults differ in which of them shows: turns let
// the others catch up, and a greedy thread runs as far ahead as it can.
inline constexpr EmulatorMode kModes[] = {
    {"forward by turns", 0, false, false, false},
    {"forward by turns, lazy copies", 0, false, false, true},
    {"reverse greedy", 1, true, false, false},
    {"reverse greedy, lazy copies, blocks reversed", 1, true, true, true},
    {"shuffle greedy, blocks reversed", 7, true, true, false},
    {"shuffle greedy, lazy copies", 7, true, false, true},
};
inline constexpr int kNumModes = sizeof kModes / sizeof kModes[0];

int64_t num_launches();  // of kernels, so far

// Closes the memory of the device to the host, as a card's is, or opens it again.  While it is
// closed, code of the host that reads or writes it outside of launches and copies ends by SIGSEGV.
void close_to_host(bool closed);

}  // namespace ashlar::device::emulator
