#include "ashlar/kernels/cpu/state_gates_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/state_gates_fast.cpp"
#include "ashlar/kernels/cpu/simd/dispatch.h"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ashlar/kernels/cpu/simd/vector_math-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace ashlar::kernels::cpu::HWY_NAMESPACE {
namespace {

void gla_gate_rows(const GlaGateArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.N, [&](int64_t i, auto n) HWY_ATTR {
      const V in = hn::Add(load(x.x, t * x.stride + i, n), load(x.bias, i, n));
      const V scaled = hn::Mul(softplus(hn::Neg(in)), set(float(-1 / kGlaDivisor)));
      store(scaled, x.log_decay, t * x.N + i, n);
    });
}

void gla_gate_gradient_rows(const GlaGateGradientArgs<float>& x, int64_t begin, int64_t end,
                            float* dbias) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.N, [&](int64_t i, auto n) HWY_ATTR {
      const V in = hn::Add(load(x.x, t * x.stride + i, n), load(x.bias, i, n));
      const V slope = hn::Mul(sigmoid(hn::Neg(in)), set(float(1 / kGlaDivisor)));
      const V dx = hn::Mul(load(x.dlog_decay, t * x.N + i, n), slope);
      store(dx, x.dx, t * x.dstride + i, n);
      add_to(dx, dbias + i, n);
    });
}

// exp(A_log), held below overflow.
HWY_INLINE V decay_rate(V a_log) {
  return exp_approx(hn::Min(a_log, set(88.0f)));
}

void delta_gates_rows(const DeltaGatesArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.H, [&](int64_t h, auto n) HWY_ATTR {
      const V b = load(x.ba, t * x.stride + h, n), a = load(x.ba, t * x.stride + x.H + h, n);
      const V rate = decay_rate(load(x.a_log, h, n));
      store(sigmoid(b), x.beta, t * x.H + h, n);
      store(hn::Neg(hn::Mul(rate, softplus(hn::Add(a, load(x.dt_bias, h, n))))), x.log_decay,
            t * x.H + h, n);
    });
}

void delta_gates_gradient_rows(const DeltaGatesGradientArgs<float>& x, int64_t begin, int64_t end,
                               float* partial) {
  float *da_log = partial, *ddt_bias = partial + x.H;
  for (int64_t t = begin; t < end; ++t)
    for_lanes(x.H, [&](int64_t h, auto n) HWY_ATTR {
      const V beta = sigmoid(load(x.ba, t * x.stride + h, n));
      const V in = hn::Add(load(x.ba, t * x.stride + x.H + h, n), load(x.dt_bias, h, n));
      const V scaled =
          hn::Neg(hn::Mul(decay_rate(load(x.a_log, h, n)), load(x.dlog_decay, t * x.H + h, n)));
      const V dx = hn::Mul(scaled, sigmoid(in));
      const V dbeta = load(x.dbeta, t * x.H + h, n);
      store(hn::Mul(dbeta, hn::Mul(beta, hn::Sub(set(1), beta))), x.dba, t * x.dstride + h, n);
      store(dx, x.dba, t * x.dstride + x.H + h, n);
      add_to(hn::Mul(scaled, softplus(in)), da_log + h, n);
      add_to(dx, ddt_bias + h, n);
    });
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(gla_gate_rows);
HWY_EXPORT(gla_gate_gradient_rows);
HWY_EXPORT(delta_gates_rows);
HWY_EXPORT(delta_gates_gradient_rows);

void gla_gate_rows_fast(const GlaGateArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(gla_gate_rows))(args, begin, end);
}
void gla_gate_gradient_rows_fast(const GlaGateGradientArgs<float>& args, int64_t begin, int64_t end,
                                 float* partial) {
  dispatch(HWY_DISPATCH_TABLE(gla_gate_gradient_rows))(args, begin, end, partial);
}
void delta_gates_rows_fast(const DeltaGatesArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(delta_gates_rows))(args, begin, end);
}
void delta_gates_gradient_rows_fast(const DeltaGatesGradientArgs<float>& args, int64_t begin,
                                    int64_t end, float* partial) {
  dispatch(HWY_DISPATCH_TABLE(delta_gates_gradient_rows))(args, begin, end, partial);
}

}  // namespace ashlar::kernels::cpu
#endif
