// Rows of logits on the vectors of isa().
#pragma once

#include <cstdint>

#include "ashlar/tensor/dtype.h"

namespace ashlar::kernels::cpu {

float logsumexp_fast(const float* x, int64_t n);
// y = exp(x - logsumexp) scale; returns logsumexp.  y may be x.
float softmax_fast(const float* x, int64_t n, float scale, float* y);
float softmax_fast(const float* x, int64_t n, float scale, bf16* y);
// y = exp(x) by exp_approx, for its test.
void exp_fast(const float* x, int64_t n, float* y);

}  // namespace ashlar::kernels::cpu
