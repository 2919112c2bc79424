#include "ashlar/kernels/cpu/activations.h"
#include "ashlar/kernels/cpu/gated_norm_args.h"
#include "ashlar/kernels/cpu/ops.h"

namespace ashlar::kernels::cpu {
namespace {

// g(z) and its slope of element i of a group.
template <typename T>
Activated<T> gate_at(const GatedNormArgs<T>& x, const NormGroup& p, int64_t i) {
  if (x.s.gate == OutputGate::kNone) return {1, 0};
  const T z = x.z[p.in_z + i];
  if (x.s.gate == OutputGate::kSilu) return silu(z);
  return {sigmoid(z), sigmoid(z) * (T(1) - sigmoid(z))};
}

template <typename T, typename Body>
void for_groups(const GatedNormArgs<T>& x, int64_t begin, int64_t end, Body body) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t g = 0; g < x.s.G; ++g) body(norm_group(x, t, g));
}

template <typename T>
void square_rows(const GatedNormArgs<T>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) {
    T sum = 0;
    for (int64_t i = 0; i < x.s.D; ++i) sum += x.x[p.in_x + i] * x.x[p.in_x + i];
    x.squares.set(p.in_sums, sum);
  });
}

template <typename T>
void norm_rows(const GatedNormArgs<T>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) {
    const T rstd = rstd_of(x, p);
    for (int64_t i = 0; i < x.s.D; ++i)
      x.y.set(p.in_x + i, x.w[p.in_w + i] * x.x[p.in_x + i] * rstd * gate_at(x, p, i).value);
  });
}

template <typename T>
void dot_rows(const GatedNormArgs<T>& x, int64_t begin, int64_t end) {
  for_groups(x, begin, end, [&](const NormGroup& p) {
    T sum = 0;
    for (int64_t i = 0; i < x.s.D; ++i)
      sum += x.dy[p.in_x + i] * gate_at(x, p, i).value * x.w[p.in_w + i] * x.x[p.in_x + i];
    x.dots.set(p.in_sums, sum);
  });
}

template <typename T>
void gradient_rows(const GatedNormArgs<T>& x, int64_t begin, int64_t end, T* dw) {
  for_groups(x, begin, end, [&](const NormGroup& p) {
    const T rstd = rstd_of(x, p), mean = rstd * x.dots[p.in_sums] / T(x.s.mean_over);
    for (int64_t i = 0; i < x.s.D; ++i) {
      const T normed = x.x[p.in_x + i] * rstd, w = x.w[p.in_w + i], dy = x.dy[p.in_x + i];
      const Activated<T> gate = gate_at(x, p, i);
      x.dx.set(p.in_x + i, rstd * (dy * gate.value * w - normed * mean));
      if (x.dz) x.dz.set(p.in_dz + i, dy * w * normed * gate.slope);
      dw[p.in_w + i] += dy * gate.value * normed;
    }
  });
}

template <typename T>
GatedNormArgs<T> backward_args(const GatedNormBackward& x) {
  return {.s = x.shape,
          .z_stride = x.z.stride,
          .dz_stride = x.dz.stride,
          .x = x.x,
          .squares = x.squares_TG,
          .w = x.w,
          .z = x.z,
          .dy = x.dy,
          .dots = x.dots_TG,
          .dx = x.dx,
          .dz = x.dz};
}

}  // namespace

void gated_norm_squares(const Context& ctx, const GatedNormShape& shape, const Tensor& x,
                        const Tensor& squares_TG) {
  with_real(x.dtype, [&]<typename Real>(Real) {
    const GatedNormArgs<Real> args{.s = shape, .x = x, .squares = squares_TG};
    run_rows(ctx, x.shape[0], args, gated_norm_square_rows_fast, square_rows<Real>);
  });
}

void gated_norm_forward(const Context& ctx, const GatedNormForward& x) {
  with_real(x.x.dtype, [&]<typename Real>(Real) {
    const GatedNormArgs<Real> args{.s = x.shape,
                                   .z_stride = x.z.stride,
                                   .x = x.x,
                                   .squares = x.squares_TG,
                                   .w = x.w,
                                   .z = x.z,
                                   .y = x.y};
    run_rows(ctx, x.x.shape[0], args, gated_norm_rows_fast, norm_rows<Real>);
  });
}

void gated_norm_dots(const Context& ctx, const GatedNormBackward& x) {
  with_real(x.x.dtype, [&]<typename Real>(Real) {
    run_rows(ctx, x.x.shape[0], backward_args<Real>(x), gated_norm_dot_rows_fast, dot_rows<Real>);
  });
}

void gated_norm_backward(const Context& ctx, const GatedNormBackward& x) {
  with_real(x.x.dtype, [&]<typename Real>(Real) {
    run_summing_rows(ctx, x.x.shape[0], {x.dw}, backward_args<Real>(x),
                     gated_norm_gradient_rows_fast, gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
