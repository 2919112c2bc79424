#include "ashlar/kernels/cpu/moe_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ashlar/kernels/cpu/moe_fast.cpp"
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

void scale_row(int64_t H, const Cells<float>& from, int64_t at, float scale, const Cells<float>& to,
               int64_t to_at) {
  for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
    store(hn::Mul(load(from, at + i, n), set(scale)), to, to_at + i, n);
  });
}

void combine_rows(const CombineArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = x.row_of_token[t];
    if (row >= 0)
      scale_row(x.H, x.y_rows, row * x.H, x.p[t], x.e, t * x.H);
    else if (x.identity)
      scale_row(x.H, x.m, t * x.H, x.p[t], x.e, t * x.H);
    else
      for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR { store(set(0), x.e, t * x.H + i, n); });
  }
}

float dot_rows(int64_t H, const Cells<float>& a, int64_t a_at, const Cells<float>& b,
               int64_t b_at) {
  V sum = set(0);
  for_lanes(H, [&](int64_t i, auto n)
                   HWY_ATTR { sum = hn::MulAdd(load(a, a_at + i, n), load(b, b_at + i, n), sum); });
  return sum_of_lanes(sum);
}

void combine_gradient_rows(const CombineGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = x.row_of_token[t], at = t * x.H;
    float dp = 0;
    if (row >= 0) {
      dp = dot_rows(x.H, x.de, at, x.y_rows, row * x.H);
      scale_row(x.H, x.de, at, x.p[t], x.dy_rows, row * x.H);
    } else if (x.identity) {
      dp = dot_rows(x.H, x.de, at, x.m, at);
    }
    x.dp.set(t, dp);
  }
}

void scatter_rows(const ScatterArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = x.row_of_token[t], to = t * x.H;
    if (row < 0 && !x.identity) continue;
    const Cells<float>& from = row >= 0 ? x.dx_rows : x.de;
    const int64_t at = row >= 0 ? row * x.H : to;
    const V scale = set(row >= 0 ? 1.0f : x.p[t]);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      store(hn::MulAdd(scale, load(from, at + i, n), load(x.dm, to + i, n)), x.dm, to + i, n);
    });
  }
}

void swiglu_rows(const SwigluArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * x.F;
    for_lanes(x.F, [&](int64_t i, auto n) HWY_ATTR {
      const V gate = load(x.gate_up, at + i, n), up = load(x.gate_up, at + x.F + i, n);
      store(hn::Mul(hn::Mul(gate, sigmoid(gate)), up), x.act, row * x.F + i, n);
    });
  }
}

void swiglu_gradient_rows(const SwigluGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * x.F;
    for_lanes(x.F, [&](int64_t i, auto n) HWY_ATTR {
      const V gate = load(x.gate_up, at + i, n), up = load(x.gate_up, at + x.F + i, n);
      const V sigma = sigmoid(gate), dact = load(x.dact, row * x.F + i, n),
              silu = hn::Mul(gate, sigma);
      const V slope = hn::MulAdd(silu, hn::Sub(set(1), sigma), sigma);
      store(hn::Mul(hn::Mul(dact, up), slope), x.dgate_up, at + i, n);
      store(hn::Mul(dact, silu), x.dgate_up, at + x.F + i, n);
    });
  }
}

}  // namespace
}  // namespace ashlar::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ashlar::kernels::cpu {

HWY_EXPORT(combine_rows);
HWY_EXPORT(combine_gradient_rows);
HWY_EXPORT(scatter_rows);
HWY_EXPORT(swiglu_rows);
HWY_EXPORT(swiglu_gradient_rows);

void combine_rows_fast(const CombineArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(combine_rows))(args, begin, end);
}
void combine_gradient_rows_fast(const CombineGradientArgs<float>& args, int64_t begin,
                                int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(combine_gradient_rows))(args, begin, end);
}
void scatter_rows_fast(const ScatterArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(scatter_rows))(args, begin, end);
}
void swiglu_rows_fast(const SwigluArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(swiglu_rows))(args, begin, end);
}
void swiglu_gradient_rows_fast(const SwigluGradientArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(swiglu_gradient_rows))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
