#include "ashlar/core/error.h"
#include "ashlar/kernels/gpu/blas/blas.h"
#include "ashlar/kernels/gpu/launch.h"

namespace ashlar::kernels::gpu::blas {
namespace {

[[noreturn]] void refuse_vendor(std::string_view library) {
  ASHLAR_FAIL(kDevice, "products on GPUs of {} need {}, which this version cannot call",
              device::vendor(), library);
}

}  // namespace

const Table kHip = {
    .multiply = [](const Context&, const Product&, const Tensor&) { refuse_vendor("hipBLASLt"); },
    .description = []() -> std::string { refuse_vendor("hipBLASLt"); }};

int64_t workspace_bytes(const Context&) {
  return 32 << 20;
}

const Table& table() {
  const std::string vendor = device::vendor();
  if (vendor == "host") return kReference;
  if (vendor == "AMD") return kHip;
  refuse_vendor("cuBLASLt");
}

}  // namespace ashlar::kernels::gpu::blas
