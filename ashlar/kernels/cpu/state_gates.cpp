// How it works.  logsigmoid(x) is -softplus(-x), and the slope of softplus is sigmoid:
//
//   GLA         d log_decay / d x = sigmoid(-(x + bias)) / 16
//   delta rule  d log_decay / d x = -exp(A_log) sigmoid(x + dt_bias)
//               d log_decay / d A_log = log_decay
//               d beta / d b = beta (1 - beta)
#include <cmath>

#include "ashlar/kernels/cpu/activations.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/cpu/state_gates_args.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
void gla_gate_rows(const GlaGateArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.N; ++i)
      x.log_decay.set(t * x.N + i,
                      -softplus(-(x.x[t * x.stride + i] + x.bias[i])) / T(kGlaDivisor));
}

template <typename T>
void gla_gate_gradient_rows(const GlaGateGradientArgs<T>& x, int64_t begin, int64_t end, T* dbias) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t i = 0; i < x.N; ++i) {
      const T slope = sigmoid(-(x.x[t * x.stride + i] + x.bias[i])) / T(kGlaDivisor);
      const T dx = x.dlog_decay[t * x.N + i] * slope;
      x.dx.set(t * x.dstride + i, dx);
      dbias[i] += dx;
    }
}

template <typename T>
void delta_gates_rows(const DeltaGatesArgs<T>& x, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < x.H; ++h) {
      const T b = x.ba[t * x.stride + h], a = x.ba[t * x.stride + x.H + h];
      x.beta.set(t * x.H + h, sigmoid(b));
      x.log_decay.set(t * x.H + h, -std::exp(x.a_log[h]) * softplus(a + x.dt_bias[h]));
    }
}

template <typename T>
void delta_gates_gradient_rows(const DeltaGatesGradientArgs<T>& x, int64_t begin, int64_t end,
                               T* partial) {
  T *da_log = partial, *ddt_bias = partial + x.H;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < x.H; ++h) {
      const T beta = sigmoid(x.ba[t * x.stride + h]);
      const T in = x.ba[t * x.stride + x.H + h] + x.dt_bias[h];
      const T scaled = -std::exp(x.a_log[h]) * x.dlog_decay[t * x.H + h];
      const T dx = scaled * sigmoid(in);
      x.dba.set(t * x.dstride + h, x.dbeta[t * x.H + h] * beta * (T(1) - beta));
      x.dba.set(t * x.dstride + x.H + h, dx);
      da_log[h] += scaled * softplus(in);
      ddt_bias[h] += dx;
    }
}

}  // namespace

void gla_gate_forward(const Context& ctx, const Matrix& x_TN, const Tensor& bias_N,
                      const Tensor& log_decay_TN) {
  with_real(x_TN.dtype, [&]<typename Real>(Real) {
    const GlaGateArgs<Real> args{.N = x_TN.cols,
                                 .stride = x_TN.stride,
                                 .x = x_TN,
                                 .bias = bias_N,
                                 .log_decay = log_decay_TN};
    run_rows(ctx, x_TN.rows, args, gla_gate_rows_fast, gla_gate_rows<Real>);
  });
}

void gla_gate_backward(const Context& ctx, const GlaGateBackward& x) {
  with_real(x.x_TN.dtype, [&]<typename Real>(Real) {
    const GlaGateGradientArgs<Real> args{.N = x.x_TN.cols,
                                         .stride = x.x_TN.stride,
                                         .dstride = x.dx_TN.stride,
                                         .x = x.x_TN,
                                         .bias = x.bias_N,
                                         .dlog_decay = x.dlog_decay_TN,
                                         .dx = x.dx_TN};
    run_summing_rows(ctx, x.x_TN.rows, {x.dbias_N}, args, gla_gate_gradient_rows_fast,
                     gla_gate_gradient_rows<Real>);
  });
}

void delta_gates_forward(const Context& ctx, const DeltaGatesForward& x) {
  with_real(x.ba_T2H.dtype, [&]<typename Real>(Real) {
    const DeltaGatesArgs<Real> args{.H = x.a_log_H.numel(),
                                    .stride = x.ba_T2H.stride,
                                    .ba = x.ba_T2H,
                                    .a_log = x.a_log_H,
                                    .dt_bias = x.dt_bias_H,
                                    .log_decay = x.log_decay_TH,
                                    .beta = x.beta_TH};
    run_rows(ctx, x.ba_T2H.rows, args, delta_gates_rows_fast, delta_gates_rows<Real>);
  });
}

void delta_gates_backward(const Context& ctx, const DeltaGatesBackward& x) {
  with_real(x.ba_T2H.dtype, [&]<typename Real>(Real) {
    const DeltaGatesGradientArgs<Real> args{.H = x.a_log_H.numel(),
                                            .stride = x.ba_T2H.stride,
                                            .dstride = x.dba_T2H.stride,
                                            .ba = x.ba_T2H,
                                            .a_log = x.a_log_H,
                                            .dt_bias = x.dt_bias_H,
                                            .dlog_decay = x.dlog_decay_TH,
                                            .dbeta = x.dbeta_TH,
                                            .dba = x.dba_T2H};
    run_summing_rows(ctx, x.ba_T2H.rows, {x.da_log_H, x.ddt_bias_H}, args,
                     delta_gates_gradient_rows_fast, delta_gates_gradient_rows<Real>);
  });
}

}  // namespace ashlar::kernels::cpu
