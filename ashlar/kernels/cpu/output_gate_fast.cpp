#include "ashlar/kernels/cpu/output_gate_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/output_gate_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/lanes-inl.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

void output_gate_rows(const OutputGateArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.C, [&](int64_t i, auto n) HWY_ATTR {
      const V sigma = sigmoid(load(x.gate, t * x.gate_stride + i, n));
      store(hn::Mul(load(x.att, t * x.C + i, n), sigma), x.y, t * x.C + i, n);
    });
}

void output_gate_gradient_rows(const OutputGateGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.C, [&](int64_t i, auto n) HWY_ATTR {
      const int64_t at = t * x.C + i;
      const V sigma = sigmoid(load(x.gate, t * x.gate_stride + i, n));
      const V datt = hn::Mul(load(x.dy, at, n), sigma);
      const V dgate = hn::Mul(hn::Mul(datt, load(x.att, at, n)), hn::Sub(set(1), sigma));
      store(dgate, x.dgate, t * x.dgate_stride + i, n);
      store(datt, x.datt, at, n);
    });
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(output_gate_rows);
HWY_EXPORT(output_gate_gradient_rows);

void output_gate_rows_fast(const OutputGateArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(output_gate_rows))(args, begin, end);
}
void output_gate_gradient_rows_fast(const OutputGateGradientArgs<float>& args, int64_t begin,
                                    int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(output_gate_gradient_rows))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
