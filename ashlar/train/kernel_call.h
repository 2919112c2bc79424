// The calls of kernels that do the same work, as a trace holds them.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "ashlar/tensor/trace.h"

namespace ashlar::train {

struct KernelCall {
  std::string op;  // "linear_forward"
  DType dtype = DType::kF32;
  TraceDims dims;
  int64_t flop = 0, bytes = 0;

  auto key() const {
    return std::tie(op, dtype, dims.groups, dims.rows, dims.cols, dims.depth, flop, bytes);
  }
  bool operator<(const KernelCall& other) const { return key() < other.key(); }
  bool operator==(const KernelCall& other) const { return key() == other.key(); }
};
// The event is a kernel's.
inline KernelCall call_of(const Trace& trace, const TraceEvent& event) {
  return {std::string(trace.text(event.name)), event.dtype, trace.dims(event), event.flop,
          event.bytes};
}

using KernelCalls = std::map<KernelCall, int64_t>;  // how often each is made

}  // namespace ashlar::train
