// Judges every step: finite, and no spike of loss or gradient norm against the last steps.
//
//   skipped   a loss or norm that is not finite; once the window is full: a norm above
//             max_norm_ratio x the largest norm of the window, or a loss above its largest loss +
//             max_loss_rise
//   window    the last finite values, those of skipped steps included: what comes again is no
//             spike but a new level, and is applied
//   budget    max_consecutive_skips steps in a row that are not finite, or max_skips_per_1000
//             skipped steps of either kind in the last 1000
//
// Source  the rule and its defaults were chosen on losses and norms of healthy runs, which have
//         long tails, and of the same runs with faults put in.  A spike that it lets pass is
//         bounded by optim.clip_norm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/statistics.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct Verdict {
  bool apply = true;   // false: skip the update
  std::string reason;  // of a skip, with the key that decided
  std::string level;   // of an applied step that was a spike, had none been skipped before it
};

// The part of the state that a checkpoint keeps.
struct HealthState {
  std::vector<double> losses, norms;
  int64_t loss_count = 0, norm_count = 0;
  int64_t skipped = 0, non_finite = 0;
  int64_t consecutive = 0;            // steps that were not finite, up to the last one
  std::vector<int64_t> recent_skips;  // steps
};

class Health {
 public:
  explicit Health(const HealthSpec& spec);
  Verdict judge(int64_t step, double loss, double gradient_norm);
  // That the budget of skips is used up, and what to do; "" if it is not.
  std::string over_budget() const;

  int64_t skipped() const { return state_.skipped; }
  int64_t non_finite() const { return state_.non_finite; }
  HealthState state() const;
  void restore(const HealthState& state);
  // Empties the windows: what comes cannot be compared with what was.
  void forget_values();

 private:
  struct Largest {
    double loss, norm;
  };
  enum class Of : uint8_t { kWindow, kBeforeSkip };
  // What makes the step a spike over the largest values of these steps; "" if it is none.
  std::string spike(double loss, double norm, const Largest& largest, Of of) const;

  HealthSpec spec_;
  Window losses_, norms_;
  std::optional<Largest> before_;  // before the skips that ended with the last finite step
  HealthState state_;              // counters and recent skips; the windows live above
};

}  // namespace ashlar::train
