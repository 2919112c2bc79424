#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {

constinit const Ops kOps = {ASHLAR_LIST_OPS};

}  // namespace ashlar::kernels::cpu
