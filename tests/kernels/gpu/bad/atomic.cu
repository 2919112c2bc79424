// no atomics, a second launch sums
#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

ASHLAR_KERNEL(128) atomic_kernel(float* x) {
  atomicAdd(x, 1.0f);
}

}  // namespace ashlar::device
