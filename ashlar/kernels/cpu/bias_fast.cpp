#include "ashlar/kernels/cpu/bias_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/bias_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

void bias_rows(const BiasArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.N, [&](int64_t i, auto n) HWY_ATTR {
      const int64_t at = t * x.stride + i;
      store(hn::Add(load(x.y, at, n), load(x.b, i, n)), x.y, at, n);
    });
}

void bias_gradient_rows(const BiasGradientArgs<float>& x, int64_t begin, int64_t end,
                        float* partial) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.N, [&](int64_t i, auto n)
                       HWY_ATTR { add_to(load(x.dy, t * x.stride + i, n), partial + i, n); });
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(bias_rows);
HWY_EXPORT(bias_gradient_rows);

void bias_rows_fast(const BiasArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(bias_rows))(args, begin, end);
}
void bias_gradient_rows_fast(const BiasGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial) {
  dispatch(HWY_DISPATCH_TABLE(bias_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
