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

// The part of a row that a token's choice adds: of its expert's results, or of the token itself.
template <typename Rows>
struct Term {
  Rows rows;
  int64_t at;  // negative: nothing
};

template <typename Rows>
void combine_rows_of(const CombineArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t H = x.H;
  const Rows y_rows = rows_of<Rows>(x.y_rows), m = rows_of<Rows>(x.m), e = rows_of<Rows>(x.e);
  for (int64_t t = begin; t < end; ++t) {
    const auto term = [&](int64_t j) -> Term<Rows> {
      const int64_t row = x.row_of_token[t * x.k + j];
      if (row >= 0) return {y_rows, row * H};
      return {m, x.identity ? t * H : -1};
    };
    const Term<Rows> first = term(0);
    const V p = set(x.p[t * x.k]);
    for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
      V sum = first.at >= 0 ? hn::Mul(load(first.rows, first.at + i, n), p) : set(0);
      for (int64_t j = 1; j < x.k; ++j) {
        const Term<Rows> next = term(j);
        if (next.at >= 0)
          sum = hn::MulAdd(load(next.rows, next.at + i, n), set(x.p[t * x.k + j]), sum);
      }
      store(sum, e, t * H + i, n);
    });
  }
}

template <typename A, typename B>
HWY_INLINE float dot_rows(int64_t H, const A& a, int64_t a_at, const B& b, int64_t b_at) {
  V sum = set(0);
  for_lanes(H, [&](int64_t i, auto n)
                   HWY_ATTR { sum = hn::MulAdd(load(a, a_at + i, n), load(b, b_at + i, n), sum); });
  return sum_of_lanes(sum);
}

template <typename From, typename To>
HWY_INLINE void scale_row(int64_t H, const From& from, int64_t at, float scale, const To& to,
                          int64_t to_at) {
  for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
    store(hn::Mul(load(from, at + i, n), set(scale)), to, to_at + i, n);
  });
}

template <typename Rows>
void combine_gradient_rows_of(const CombineGradientArgs<float>& x, int64_t begin, int64_t end) {
  const Rows de = rows_of<Rows>(x.de), y_rows = rows_of<Rows>(x.y_rows), m = rows_of<Rows>(x.m),
             dy_rows = rows_of<Rows>(x.dy_rows);
  for (int64_t choice = begin * x.k; choice < end * x.k; ++choice) {
    const int64_t row = x.row_of_token[choice], at = choice / x.k * x.H;
    float dp = 0;
    if (row >= 0) {
      dp = dot_rows(x.H, de, at, y_rows, row * x.H);
      scale_row(x.H, de, at, x.p[choice], dy_rows, row * x.H);
    } else if (x.identity) {
      dp = dot_rows(x.H, de, at, m, at);
    }
    x.dp.set(choice, dp);
  }
}

template <typename Rows>
void scatter_rows_of(const ScatterArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t H = x.H;
  const Rows shared = rows_of<Rows>(x.shared), dx_rows = rows_of<Rows>(x.dx_rows),
             de = rows_of<Rows>(x.de), dm = rows_of<Rows>(x.dm);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t to = t * H;
    for_lanes(H, [&](int64_t i, auto n) HWY_ATTR {
      V sum = load(dm, to + i, n);
      if (x.shared) sum = hn::Add(load(shared, to + i, n), sum);
      for (int64_t choice = t * x.k; choice < (t + 1) * x.k; ++choice) {
        const int64_t row = x.row_of_token[choice];
        if (row >= 0)
          sum = hn::Add(load(dx_rows, row * H + i, n), sum);
        else if (x.identity)
          sum = hn::MulAdd(set(x.p[choice]), load(de, to + i, n), sum);
      }
      store(sum, dm, to + i, n);
    });
  }
}

void combine_rows(const CombineArgs<float>& x, int64_t begin, int64_t end) {
  with_element_type({x.y_rows, x.m, x.e}, [&](auto rows) HWY_ATTR {
    combine_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
}
void combine_gradient_rows(const CombineGradientArgs<float>& x, int64_t begin, int64_t end) {
  with_element_type({x.de, x.y_rows, x.m, x.dy_rows}, [&](auto rows) HWY_ATTR {
    combine_gradient_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
}
void scatter_rows(const ScatterArgs<float>& x, int64_t begin, int64_t end) {
  with_element_type({x.shared, x.dx_rows, x.de, x.dm}, [&](auto rows) HWY_ATTR {
    scatter_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
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

// The sigmoid of SwiGLU's gate, as exact as the result's type needs where vectors convert to bf16.
template <typename Rows>
HWY_INLINE V gate_sigmoid(V gate) {
  if constexpr (HWY_TARGET == HWY_AVX3_DL && std::is_same_v<Rows, bf16*>)
    return sigmoid_rough(gate);
  else
    return sigmoid(gate);
}

// Whether rows of F elements are walked in pairs of neighbours, which bf16 converts with fewer
// instructions.
template <typename Rows>
HWY_INLINE bool in_pairs(int64_t F) {
  return std::is_same_v<Rows, bf16*> && F % 2 == 0;
}

template <typename Rows>
void swiglu_rows_of(const SwigluArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t F = x.F;
  const Rows gate_up = rows_of<Rows>(x.gate_up), to = rows_of<Rows>(x.act);
  const auto act = [](V gate, V up)
                       HWY_ATTR { return hn::Mul(hn::Mul(gate, gate_sigmoid<Rows>(gate)), up); };
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * F;
    if (in_pairs<Rows>(F)) {
      for_lanes(F / 2, [&](int64_t i, auto n) HWY_ATTR {
        const Pair gate = load_pairs(gate_up, at + 2 * i, n);
        const Pair up = load_pairs(gate_up, at + F + 2 * i, n);
        store_pairs({act(gate.a, up.a), act(gate.b, up.b)}, to, row * F + 2 * i, n);
      });
    } else {
      for_lanes(F, [&](int64_t i, auto n) HWY_ATTR {
        store(act(load(gate_up, at + i, n), load(gate_up, at + F + i, n)), to, row * F + i, n);
      });
    }
  }
}

struct SwigluGradient {
  V gate, up;
};
template <typename Rows>
HWY_INLINE SwigluGradient swiglu_gradient(V gate, V up, V dact) {
  const Activated act = silu(gate, gate_sigmoid<Rows>(gate));
  return {hn::Mul(hn::Mul(dact, up), act.slope), hn::Mul(dact, act.value)};
}

template <typename Rows>
void swiglu_gradient_rows_of(const SwigluGradientArgs<float>& x, int64_t begin, int64_t end) {
  const int64_t F = x.F;
  const Rows gate_up = rows_of<Rows>(x.gate_up), dact = rows_of<Rows>(x.dact),
             to = rows_of<Rows>(x.dgate_up);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * 2 * F;
    if (in_pairs<Rows>(F)) {
      for_lanes(F / 2, [&](int64_t i, auto n) HWY_ATTR {
        const Pair gate = load_pairs(gate_up, at + 2 * i, n);
        const Pair up = load_pairs(gate_up, at + F + 2 * i, n);
        const Pair d = load_pairs(dact, row * F + 2 * i, n);
        const SwigluGradient even = swiglu_gradient<Rows>(gate.a, up.a, d.a);
        const SwigluGradient odd = swiglu_gradient<Rows>(gate.b, up.b, d.b);
        store_pairs({even.gate, odd.gate}, to, at + 2 * i, n);
        store_pairs({even.up, odd.up}, to, at + F + 2 * i, n);
      });
    } else {
      for_lanes(F, [&](int64_t i, auto n) HWY_ATTR {
        const SwigluGradient d = swiglu_gradient<Rows>(
            load(gate_up, at + i, n), load(gate_up, at + F + i, n), load(dact, row * F + i, n));
        store(d.gate, to, at + i, n);
        store(d.up, to, at + F + i, n);
      });
    }
  }
}

void swiglu_rows(const SwigluArgs<float>& x, int64_t begin, int64_t end) {
  with_element_type({x.gate_up, x.act}, [&](auto rows) HWY_ATTR {
    swiglu_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
}
void swiglu_gradient_rows(const SwigluGradientArgs<float>& x, int64_t begin, int64_t end) {
  with_element_type({x.gate_up, x.dact, x.dgate_up}, [&](auto rows) HWY_ATTR {
    swiglu_gradient_rows_of<typename decltype(rows)::type>(x, begin, end);
  });
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
