#include "ashlar/kernels/context.h"

namespace ashlar::kernels {

Cost Recorder::total() const {
  Cost sum;
  for (const Record& record : records) {
    sum.flop += record.cost.flop;
    sum.bytes += record.cost.bytes;
  }
  return sum;
}

}  // namespace ashlar::kernels
