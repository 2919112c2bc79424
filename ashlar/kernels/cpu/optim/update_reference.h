// The optimizer passes in plain loops over elements [0, n); T is float or double.
#pragma once

#include <cmath>
#include <cstdint>

#include "ashlar/kernels/update.h"

namespace ashlar::kernels::cpu {

// The step's constants, corrections of the first steps included.
template <typename T>
struct AdamWFactors {
  T beta1, one_minus_beta1, beta2, one_minus_beta2, keep, rate, inverse_root2, eps, grad_scale;
};

template <typename T>
AdamWFactors<T> adamw_factors(const AdamWStep& s) {
  return {.beta1 = T(s.beta1),
          .one_minus_beta1 = T(1 - s.beta1),
          .beta2 = T(s.beta2),
          .one_minus_beta2 = T(1 - s.beta2),
          .keep = T(1 - s.lr * s.decay),
          .rate = T(s.lr / (1 - std::pow(s.beta1, double(s.step)))),
          .inverse_root2 = T(1 / std::sqrt(1 - std::pow(s.beta2, double(s.step)))),
          .eps = T(s.eps),
          .grad_scale = T(s.grad_scale)};
}

template <typename T>
void adamw_reference(const AdamWFactors<T>& f, T* w, const T* g, T* m, T* v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * f.grad_scale;
    m[i] = f.beta1 * m[i] + f.one_minus_beta1 * gradient;
    v[i] = f.beta2 * v[i] + f.one_minus_beta2 * gradient * gradient;
    w[i] = f.keep * w[i] - f.rate * m[i] / (std::sqrt(v[i]) * f.inverse_root2 + f.eps);
  }
}

template <typename T>
void muon_momentum_reference(T mu, bool nesterov, T grad_scale, const T* g, T* m, T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * grad_scale;
    m[i] = mu * m[i] + gradient;
    x[i] = nesterov ? gradient + mu * m[i] : m[i];
  }
}

// y = keep y + alpha x
template <typename T>
void axpby_reference(T alpha, const T* x, T keep, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = keep * y[i] + alpha * x[i];
}

}  // namespace ashlar::kernels::cpu
