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

// The part of a row that a token's choice adds: of its expert's results, or of the token itself.
struct Term {
  const Cells<float>* cells;  // null: nothing
  int64_t at;
};

void combine_rows(const CombineArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const auto term = [&](int64_t j) -> Term {
      const int64_t row = x.row_of_token[t * x.k + j];
      if (row >= 0) return {&x.y_rows, row * x.H};
      return {x.identity ? &x.m : nullptr, t * x.H};
    };
    const Term first = term(0);
    const V p = set(x.p[t * x.k]);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      V sum = first.cells ? hn::Mul(load(*first.cells, first.at + i, n), p) : set(0);
      for (int64_t j = 1; j < x.k; ++j) {
        const Term next = term(j);
        if (next.cells)
          sum = hn::MulAdd(load(*next.cells, next.at + i, n), set(x.p[t * x.k + j]), sum);
      }
      store(sum, x.e, t * x.H + i, n);
    });
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
  for (int64_t choice = begin * x.k; choice < end * x.k; ++choice) {
    const int64_t row = x.row_of_token[choice], at = choice / x.k * x.H;
    float dp = 0;
    if (row >= 0) {
      dp = dot_rows(x.H, x.de, at, x.y_rows, row * x.H);
      scale_row(x.H, x.de, at, x.p[choice], x.dy_rows, row * x.H);
    } else if (x.identity) {
      dp = dot_rows(x.H, x.de, at, x.m, at);
    }
    x.dp.set(choice, dp);
  }
}

void scatter_rows(const ScatterArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t to = t * x.H;
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      V sum = load(x.dm, to + i, n);
      if (x.shared) sum = hn::Add(load(x.shared, to + i, n), sum);
      for (int64_t choice = t * x.k; choice < (t + 1) * x.k; ++choice) {
        const int64_t row = x.row_of_token[choice];
        if (row >= 0)
          sum = hn::Add(load(x.dx_rows, row * x.H + i, n), sum);
        else if (x.identity)
          sum = hn::MulAdd(set(x.p[choice]), load(x.de, to + i, n), sum);
      }
      store(sum, x.dm, to + i, n);
    });
  }
}

float gate_of(float z) {
  return hn::GetLane(sigmoid(set(z)));
}

void shared_rows(const SharedArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const V gate = set(x.z ? gate_of(x.z[t]) : 1.0f);
    for_lanes(x.H, [&](int64_t i, auto n) HWY_ATTR {
      const int64_t at = t * x.H + i;
      store(hn::MulAdd(gate, load(x.s, at, n), load(x.e, at, n)), x.e, at, n);
    });
  }
}

void shared_gradient_rows(const SharedGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const float gate = gate_of(x.z[t]);
    const int64_t at = t * x.H;
    x.dz.set(t, gate * (1.0f - gate) * dot_rows(x.H, x.de, at, x.s, at));
    scale_row(x.H, x.de, at, gate, x.ds, at);
  }
}

void swiglu_rows(const SwigluArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * x.F;
    for_lanes(x.F, [&](int64_t i, auto n) HWY_ATTR {
      const V gate = load(x.gate_up, at + i, n), up = load(x.gate_up, at + x.F + i, n);
      store(hn::Mul(silu(gate).value, up), x.act, row * x.F + i, n);
    });
  }
}

void swiglu_gradient_rows(const SwigluGradientArgs<float>& x, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * x.F;
    for_lanes(x.F, [&](int64_t i, auto n) HWY_ATTR {
      const V gate = load(x.gate_up, at + i, n), up = load(x.gate_up, at + x.F + i, n);
      const V dact = load(x.dact, row * x.F + i, n);
      const Activated act = silu(gate);
      store(hn::Mul(hn::Mul(dact, up), act.slope), x.dgate_up, at + i, n);
      store(hn::Mul(dact, act.value), x.dgate_up, at + x.F + i, n);
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
HWY_EXPORT(shared_rows);
HWY_EXPORT(shared_gradient_rows);
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
void shared_rows_fast(const SharedArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(shared_rows))(args, begin, end);
}
void shared_gradient_rows_fast(const SharedGradientArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(shared_gradient_rows))(args, begin, end);
}
void swiglu_rows_fast(const SwigluArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(swiglu_rows))(args, begin, end);
}
void swiglu_gradient_rows_fast(const SwigluGradientArgs<float>& args, int64_t begin, int64_t end) {
  dispatch(HWY_DISPATCH_TABLE(swiglu_gradient_rows))(args, begin, end);
}

}  // namespace ashlar::kernels::cpu
#endif
