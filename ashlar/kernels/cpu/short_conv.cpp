// How it works.  A token reads x of the tokens j = 0 .. w - 1 steps before it, with weight w - 1 -
// j.  Before a document x is 0; before a segment that continues one it is the halo, newest row
// last.
//
//   s_t = sum_j W[w-1-j] x_{t-j}     y_t = silu(s_t)     ds_t = dy_t silu'(s_t)
//
// Backward recomputes s.  x_u is read by the tokens u + j of its segment:
//
//   dx_u = sum_j W[w-1-j] ds_{u+j}
//
// and a row of the halo, m tokens before the segment, by those with j >= m.
#include "ashlar/kernels/cpu/activations.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/short_conv_args.h"

namespace ashlar::kernels::cpu {
namespace {

// x_{t - steps}[c]; p: the neighbours of t.
template <typename Args>
auto x_at(const Args& x, const ConvNeighbours& p, int64_t t, int64_t steps, int64_t c) {
  if (steps > p.position) return decltype(x.x[0])(0);
  if (steps <= p.back) return x.x[(t - steps) * x.x_stride + c];
  const int64_t before = steps - p.back, num_rows = x.taps - 1;
  return x.halo[((p.halo + 1) * num_rows - before) * x.C + c];
}

template <typename Args>
auto convolved(const Args& x, int64_t t, int64_t c) {
  const ConvNeighbours p = neighbours_of(*x.sequence, t);
  auto sum = decltype(x.x[0])(0);
  for (int64_t i = 0; i < x.taps; ++i)
    sum += x.w[c * x.taps + i] * x_at(x, p, t, x.taps - 1 - i, c);
  return sum;
}

template <typename T>
void short_conv_rows(const ShortConvArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < x.C; ++c) x.y.set(t * x.C + c, silu(convolved(x, t, c)).value);
}

// The gradient of x_{t - before}, t the first token of a segment if before > 0, from the tokens of
// t's segment.
template <typename T>
T input_gradient(const ShortConvGradientArgs<T>& x, int64_t t, int64_t before, int64_t c) {
  const int64_t ahead = neighbours_of(*x.sequence, t).ahead;
  T sum = 0;
  for (int64_t j = before; j < x.taps && j - before <= ahead; ++j) {
    const int64_t reached = t + j - before;
    const T ds = x.dy[reached * x.C + c] * silu(convolved(x, reached, c)).slope;
    sum += x.w[c * x.taps + x.taps - 1 - j] * ds;
  }
  return sum;
}

template <typename T>
void short_conv_gradient_rows(const ShortConvGradientArgs<T>& x, int64_t begin, int64_t end,
                              T* dw) {
  const int64_t num_rows = x.taps - 1;
  for (int64_t t = begin; t < end; ++t) {
    const ConvNeighbours p = neighbours_of(*x.sequence, t);
    for (int64_t c = 0; c < x.C; ++c) {
      const T ds = x.dy[t * x.C + c] * silu(convolved(x, t, c)).slope;
      for (int64_t i = 0; i < x.taps; ++i)
        dw[c * x.taps + i] += ds * x_at(x, p, t, x.taps - 1 - i, c);
      x.dx.set(t * x.dx_stride + c, input_gradient(x, t, 0, c));
      if (p.back > 0 || p.halo < 0) continue;
      for (int64_t m = 1; m <= num_rows; ++m)
        x.dhalo.set(((p.halo + 1) * num_rows - m) * x.C + c,
                    m <= p.position ? input_gradient(x, t, m, c) : T(0));
    }
  }
}

}  // namespace

void short_conv_forward(const Context& ctx, const ShortConvForward& x) {
  with_real(x.x_TC.dtype, [&]<typename Real>(Real) {
    const ShortConvArgs<Real> args{.sequence = &x.sequence,
                                   .C = x.x_TC.cols,
                                   .taps = x.w_C1W.shape[2],
                                   .x_stride = x.x_TC.stride,
                                   .x = x.x_TC,
                                   .halo = x.halo,
                                   .w = x.w_C1W,
                                   .y = x.y_TC};
    run_rows(ctx, x.x_TC.rows, args, short_conv_rows_fast, short_conv_rows<Real>);
  });
}

void short_conv_backward(const Context& ctx, const ShortConvBackward& x) {
  with_real(x.x_TC.dtype, [&]<typename Real>(Real) {
    const ShortConvGradientArgs<Real> args{.sequence = &x.sequence,
                                           .C = x.x_TC.cols,
                                           .taps = x.w_C1W.shape[2],
                                           .x_stride = x.x_TC.stride,
                                           .dx_stride = x.dx_TC.stride,
                                           .dy = x.dy_TC,
                                           .x = x.x_TC,
                                           .halo = x.halo,
                                           .w = x.w_C1W,
                                           .dx = x.dx_TC,
                                           .dhalo = x.dhalo};
    run_summing_rows(ctx, x.x_TC.rows, {x.dw}, args, short_conv_gradient_rows_fast,
                     short_conv_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
