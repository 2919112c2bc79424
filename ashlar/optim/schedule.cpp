#include "ashlar/optim/schedule.h"

#include <cmath>
#include <numbers>

namespace ashlar::optim {

double learning_rate(const OptimSpec& spec, int64_t step, int64_t total_steps) {
  if (step < spec.warmup_steps) return spec.lr * double(step + 1) / double(spec.warmup_steps);
  const int64_t done = step - spec.warmup_steps, span = total_steps - 1 - spec.warmup_steps;
  const double p = done < span ? double(done) / double(span) : 1.0;
  switch (spec.schedule) {
    case DecaySchedule::kCosine:
      return spec.lr_min + (spec.lr - spec.lr_min) * 0.5 * (1.0 + std::cos(std::numbers::pi * p));
    case DecaySchedule::kLinear:
      return spec.lr + (spec.lr_min - spec.lr) * p;
    case DecaySchedule::kConstant:
      return spec.lr;
  }
  return spec.lr;
}

double schedule_factor(const OptimSpec& spec, int64_t step, int64_t total_steps) {
  return spec.lr > 0.0 ? learning_rate(spec, step, total_steps) / spec.lr : 0.0;
}

}  // namespace ashlar::optim
