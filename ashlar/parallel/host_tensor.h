// Numbers of the host as a tensor that ranks exchange.  On meta it has no bytes, as every tensor
// there.
#pragma once

#include "ashlar/kernels/context.h"

namespace ashlar::parallel {

template <typename T>
Tensor host_tensor(const kernels::Context& ctx, std::span<T> values) {
  if (ctx.meta()) return {nullptr, dtype_of<T>, Device::kMeta, {int64_t(values.size())}};
  return tensor_over(values);
}

}  // namespace ashlar::parallel
