// Judges every step: finite, and no spike of loss or gradient norm against the last steps.
//
//   bad if loss or norm is not finite, or z > max_z for either once the window is full (a fall is
//   no spike); bad values do not enter the window.  The budget: max_consecutive_skips in a row, or
//   max_skips_per_1000 in the last 1000 steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/core/statistics.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct Verdict {
  bool apply = true;  // false: skip the update
  std::string
      reason;  // "loss is nan", "gradient norm 81.2 is 9.3 deviations off the last 128 steps"
};

// The part of the state that a checkpoint keeps.
struct HealthState {
  std::vector<double> losses, norms;
  int64_t loss_count = 0, norm_count = 0;
  int64_t skipped = 0, non_finite = 0, consecutive = 0;
  std::vector<int64_t> recent_skips;  // steps
};

class Health {
 public:
  explicit Health(const HealthSpec& spec);
  Verdict judge(int64_t step, double loss, double gradient_norm);
  // kNumeric once the budget of skips is used up.
  void check_budget() const;

  int64_t skipped() const { return state_.skipped; }
  int64_t non_finite() const { return state_.non_finite; }
  HealthState state() const;
  void restore(const HealthState& state);

 private:
  HealthSpec spec_;
  Window losses_, norms_;
  HealthState state_;  // counters and recent skips; the windows live above
};

}  // namespace ashlar::train
