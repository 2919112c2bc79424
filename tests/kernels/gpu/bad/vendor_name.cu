// a name of a vendor
#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

ASHLAR_KERNEL(128) vendor_name_kernel(float* x) {
  x[threadIdx.x] = 0;
}

}  // namespace ashlar::device
