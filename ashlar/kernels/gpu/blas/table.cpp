#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/device.h"

namespace ashlar::kernels::gpu::blas {
namespace {

[[noreturn]] void refuse_amd() {
  ASHLAR_FAIL(kDevice,
              "products on AMD's GPUs need hipBLASLt, which this version of Ashlar does not call "
              "yet; the CPU has all products");
}

}  // namespace

const Table kHip = {.multiply = [](const Context&, const Product&, const Tensor&) { refuse_amd(); },
                    .description = []() -> std::string { refuse_amd(); }};

void multiply(const Context& ctx, const Product& product, const Tensor& workspace) {
  ctx.count_launches(1);
  if (!ctx.meta()) table().multiply(ctx, product, workspace);
}

int64_t workspace_bytes(const Context& ctx) {
  return (ctx.spec ? *ctx.spec : DeviceSpec()).product_workspace_bytes;
}

const Table& table() {
  const std::string vendor = device::vendor();
  if (vendor == "host") return kReference;
  return vendor == "AMD" ? kHip : kCuda;
}

}  // namespace ashlar::kernels::gpu::blas
