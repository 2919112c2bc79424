// The fp32 passes of update.h on the vectors of isa(), over elements [0, n); no threads inside.
#pragma once

#include "ashlar/kernels/cpu/optim/update_reference.h"

namespace ashlar::kernels::cpu {

void adamw_fast(const AdamWFactors<float>& factors, float* w, const float* g, float* m, float* v,
                int64_t n);
void muon_momentum_fast(float mu, bool nesterov, float grad_scale, const float* g, float* m,
                        float* x, int64_t n);
void axpby_fast(float alpha, const float* x, float keep, float* y,
                int64_t n);                                // y = keep y + alpha x
float block_sum_of_squares(const float* x, int64_t n);     // fp32 lanes
int64_t first_non_finite_fast(const float* x, int64_t n);  // n if there is none

}  // namespace ashlar::kernels::cpu
