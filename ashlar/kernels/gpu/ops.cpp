#include "ashlar/kernels/gpu/ops.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::kernels::gpu {
namespace {

// The name of a function, as an argument of a template.
template <size_t kSize>
struct Name {
  char text[kSize];
  consteval Name(const char (&from)[kSize]) { std::copy_n(from, kSize, text); }
};

// The entry of a function that GPUs do not have.
template <Name kName, typename Result, typename... Args>
[[noreturn]] Result missing(Args...) {
  ASHLAR_FAIL(kDevice, "{} has no GPU path yet; the CPU has one", kName.text);
}
template <Name kName, typename Result, typename... Args>
constexpr void leave_out(Result (*&entry)(Args...)) {
  entry = missing<kName, Result, Args...>;
}

constexpr Ops all_ops() {
  Ops ops{};
#define ASHLAR_LEAVE_OUT(name, ...) leave_out<#name>(ops.name);
  ASHLAR_OPS(ASHLAR_LEAVE_OUT, ASHLAR_LEAVE_OUT)
#undef ASHLAR_LEAVE_OUT
#define ASHLAR_HAS(name) ops.name = name;
  ASHLAR_GPU_OPS(ASHLAR_HAS)
#undef ASHLAR_HAS
  return ops;
}

}  // namespace

constinit const Ops kOps = all_ops();

}  // namespace ashlar::kernels::gpu
