// Launches of kernels/gpu: steps of optimizers.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// update.h, over n elements.  operand: the weights in bf16, or absent.
struct AdamWUpdate {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, rate, inverse_root2, eps, grad_scale;
  const float* g;
  float *w, *m, *v;
  Elements operand;
  int64_t n;
  bool by_vectors;
};
std::string launch(const AdamWUpdate&);

// update.h: sum [1]; partials [ceil(n / kSquaresOfPartial)].
inline constexpr int64_t kSquaresOfPartial = 4096;
struct SumOfSquares {
  const float* x;
  double *partials, *sum;
  int64_t n;
  bool by_vectors;
  int num_kernels() const { return n > 0 ? 2 : 1; }
};
std::string launch(const SumOfSquares&);

// update.h, over n elements.
struct MuonMomentumUpdate {
  float mu, grad_scale;
  bool nesterov;
  const float* g;
  float *m, *x;
  int64_t n;
  bool by_vectors;
};
std::string launch(const MuonMomentumUpdate&);

struct MuonApplyUpdate {
  float keep, factor;  // w = keep w + factor x
  const float* x;
  float* w;
  Elements operand;  // as of AdamWUpdate
  int64_t n;
  bool by_vectors;
};
std::string launch(const MuonApplyUpdate&);

// update.h: the number of the first element that is not finite, or n; partials
// [ceil(n / kSquaresOfPartial)].
struct FirstNonFinite {
  const float* x;
  int64_t *partials, *first;
  int64_t n;
  bool by_vectors;
  int num_kernels() const { return 2; }
};
std::string launch(const FirstNonFinite&);

// newton_schulz.h: to = x / (norm + tiny) for each of `count` matrices of `size` elements; to may
// be x.  Also fills partials [count, ceil(size / kSquaresOfPartial)] and factors [count].
struct NewtonSchulzScale {
  const float* x;
  Elements to;
  double* partials;
  float* factors;
  int64_t count, size;
  float tiny;
  bool by_vectors;
  int num_kernels() const { return 3; }
};
std::string launch(const NewtonSchulzScale&);

// to = from + factor I for each of `count` square matrices.
struct AddIdentity {
  const float* from;
  float* to;
  float factor;
  int64_t count, side;
};
std::string launch(const AddIdentity&);

}  // namespace ashlar::device
