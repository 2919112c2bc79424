// What every kernel is told besides its tensors: where to run, on which threads, and who counts.
//
// A kernel looks at the dtype of its tensors and at the instruction set: fp64 always runs the plain
// reference; fp32 and bf16 run the fast path of isa() unless the Context asks for the reference.
// On the meta device a kernel checks its shapes, records its cost and returns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/core/threads.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels {

// Instruction sets with a path of their own, worst to best.
enum class Isa : uint8_t { kX86_64, kAvx2, kAvx512, kAvx512Bf16, kAmx };
std::string_view name_of(Isa isa);  // "x86-64", "avx2", "avx512", "avx512-bf16", "amx"

std::vector<Isa> supported_isas();  // of this CPU, worst first; never empty
// The one in use.  A property of the process, fixed at start: the best supported, or what
// ASHLAR_ISA names (kConfig with the legal values if unknown or unsupported).
Isa isa();
Isa choose_isa(std::string_view wish);  // what ASHLAR_ISA=wish selects; "": the best supported
void select_isa(Isa isa);  // must be supported; before any kernel runs, or between tests

// Flop and bytes of one call, as its header states them.
struct Cost {
  int64_t flop = 0, bytes = 0;
};
struct Record {
  std::string_view op;
  Shape shape;  // as the op's header says
  Cost cost;
  double start_s;  // when the call began, if the recorder has a clock; else 0
};
// Where a step is; layer -1: in no block.
struct Place {
  std::string_view phase;  // "backward"
  int64_t layer = -1;
};
struct Recorder {
  std::vector<Record> records;
  Place place;
  double (*clock_s)() = nullptr;  // seconds from any start
  Cost total() const;
};

struct Context {
  Device device = Device::kCpu;
  Threads* threads = nullptr;    // never null on the CPU
  Arena* workspace = nullptr;    // stack memory of the calling step
  bool reference = false;        // run the plain reference even where a fast path exists
  Recorder* recorder = nullptr;  // null: nobody counts

  bool meta() const { return device == Device::kMeta; }
  void enter(std::string_view phase, int64_t layer = -1) const {
    if (recorder) recorder->place = {phase, layer};
  }
  void record(std::string_view op, const Shape& shape, Cost cost) const {
    if (recorder) {
      const double now_s = recorder->clock_s ? recorder->clock_s() : 0.0;
      recorder->records.push_back({op, shape, cost, now_s});
    }
  }
};

}  // namespace ashlar::kernels
