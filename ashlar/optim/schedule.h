// Learning rate over steps: linear warm-up to lr, then decay to lr_min, the rate of the last step.
//
//   warm-up  lr * (t + 1) / warmup               t < warmup
//   cosine   lr_min + (lr - lr_min) (1 + cos(pi p)) / 2,  p = (t - warmup) / (steps - 1 - warmup)
//   linear   lr + (lr_min - lr) p;   constant   lr
//
// The last step is t = steps - 1.  It and all later steps have p = 1, even if it is the only one
// after the warm-up.
#pragma once

#include <cstdint>

#include "ashlar/spec/recipe.h"

namespace ashlar::optim {

// Step t counts from 0; total_steps is the run's length.
double learning_rate(const OptimSpec& spec, int64_t step, int64_t total_steps);

// The rate divided by its peak, by which the balancing rate is multiplied; 0 if the peak is 0.
double schedule_factor(const OptimSpec& spec, int64_t step, int64_t total_steps);

}  // namespace ashlar::optim
