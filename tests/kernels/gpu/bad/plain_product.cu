// no match for ‘operator*’
#include "ashlar/kernels/gpu/gpu.h"

namespace ashlar::device {

ASHLAR_KERNEL(128) plain_product_kernel(float* x) {
  x[0] = add(x[1] * x[2], x[3]);
}

}  // namespace ashlar::device
