// The context that every kernel receives besides its tensors: device, threads, workspace and trace.
//
// A kernel looks at the dtype of its tensors and at the instruction set: fp64 always runs the plain
// reference; fp32 and bf16 run the fast path of isa() unless the Context asks for the reference.
// On the meta device a kernel checks its shapes, records its cost and returns.
//
// A call with more than four tensors takes a struct, filled with designated initialisers.  The
// compiler rejects a call that leaves out a member without a default; `= {}` marks members that may
// be absent.
#pragma once

#include <cstdint>
#include <string_view>

#include "ashlar/core/device_spec.h"
#include "ashlar/core/threads.h"
#include "ashlar/tensor/tensor.h"
#include "ashlar/tensor/trace.h"

namespace ashlar::kernels {

class ProductTable;  // product_forms.h
struct Ops;          // ops.h
namespace cpu {
extern const Ops kOps;
}
namespace gpu {
class Stream;  // kernels/gpu.h
}

// Flop and bytes of one call, as its header states them.
struct Cost {
  int64_t flop = 0, bytes = 0;
};

struct Context {
  Device device = Device::kCpu;
  const Ops* ops = &cpu::kOps;             // of the device; on meta, of the device planned for
  Threads* threads = nullptr;              // never null on the CPU
  Arena* workspace = nullptr;              // stack memory of the calling step
  bool reference = false;                  // run the plain reference even if a fast path exists
  Trace* trace = nullptr;                  // null: nothing is recorded
  const ProductTable* products = nullptr;  // forms of products; null: by rules
  const DeviceSpec* spec = nullptr;        // of a GPU, on meta too
  gpu::Stream* stream = nullptr;           // of a GPU; null: each copy from the host waits

  bool meta() const { return device == Device::kMeta; }
  bool recording() const { return trace && trace->recording(); }
  // Sets the place in the step, recorded or not.  block -1: in no block.
  void enter(std::string_view phase, int64_t block = -1) const {
    if (trace) trace->enter(phase, block);
  }
  void enter(TracePlace::Branch branch) const {
    if (trace) trace->enter(branch);
  }
  void enter_micro_batch(int64_t number) const {
    if (trace) trace->enter_micro_batch(number);
  }
  // A kernel records its call, and keeps the result until it returns.  dtype: the type that a
  // product multiplies, else the stream's.  dims: sizes of a product or a similar operation.
  // varies: the quantity besides shapes that cost is proportional to, of which cost includes
  // `count`.
  Trace::Scope record(std::string_view op, DType dtype, Cost cost, const TraceDims& dims = {},
                      TraceEvent::Varies varies = TraceEvent::Varies::kNo,
                      int64_t count = 0) const {
    if (!recording()) return {};
    const int64_t event = trace->begin({.varies = varies,
                                        .dtype = dtype,
                                        .name = trace->index_of(op),
                                        .flop = cost.flop,
                                        .bytes = cost.bytes,
                                        .count = count});
    if (dims != TraceDims{}) trace->add_dims(event, dims);
    return {*trace, event};
  }
  // Counts launches of the kernel that is recorded; on meta, those that a GPU would have.
  void count_launches(int count) const {
    if (recording()) trace->count_launches(count);
  }
};

}  // namespace ashlar::kernels
