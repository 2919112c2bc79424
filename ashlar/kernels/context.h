// What every kernel is told besides its tensors: where to run, on which threads, and who counts.
//
// A kernel looks at the dtype of its tensors and at the instruction set: fp64 always runs the plain
// reference; fp32 and bf16 run the fast path of isa() unless the Context asks for the reference.
// On the meta device a kernel checks its shapes, records its cost and returns.
//
// A call with more than four tensors takes a struct, filled with designated initialisers.  The
// compiler refuses a call that leaves out a member without a default; `= {}` marks what may be
// absent.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ashlar/core/threads.h"
#include "ashlar/tensor/tensor.h"

namespace ashlar::kernels {

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
struct Phase {
  std::string_view name;  // "backward"
  int64_t layer = -1;
};
struct Recorder {
  std::vector<Record> records;
  Phase phase;
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
    if (recorder) recorder->phase = {phase, layer};
  }
  void record(std::string_view op, const Shape& shape, Cost cost) const {
    if (recorder) {
      const double now_s = recorder->clock_s ? recorder->clock_s() : 0.0;
      recorder->records.push_back({op, shape, cost, now_s});
    }
  }
};

}  // namespace ashlar::kernels
