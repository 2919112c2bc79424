// Judges every step: whether loss and gradient norm are finite, and no spike against the last
// steps.
//
//   skipped   a loss or norm that is not finite; once the window is full: a norm above
//             max_norm_ratio x the largest norm of the window, or a loss above its largest loss +
//             max_loss_rise
//   window    the last finite values, including those of skipped steps: a value that comes again is
//             no spike but a new level, and is applied
//   budget    max_consecutive_skips steps in a row that are not finite, or max_skips_per_1000
//             skipped steps of either kind in the last 1000
//   passed    a step with a sample that did harm before (core/skip_list.h): it is not run, and
//             counts nowhere here
//
// Source  the rule and its defaults were chosen on losses and norms of healthy runs, which have
//         long tails, and of the same runs with planted faults.  optim.clip_norm bounds a spike
//         that the rule lets pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/skip_list.h"
#include "ashlar/core/statistics.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct StepVerdict {
  bool apply = true;   // false: skip the update
  std::string reason;  // of a skip, with the key that decided
  std::string level;   // of an applied step that would be a spike if none had been skipped before
};

// The part of the state that a checkpoint keeps.
struct HealthState {
  std::vector<double> losses, norms;
  int64_t loss_count = 0, norm_count = 0;
  int64_t skipped = 0, non_finite = 0;
  int64_t consecutive = 0;            // non-finite steps in a row, up to the last step
  std::vector<int64_t> recent_skips;  // steps
  std::vector<int64_t> harmful;       // samples whose steps are passed, ascending
};

class Health {
 public:
  explicit Health(const HealthSpec& spec);
  StepVerdict judge(int64_t step, double loss, double gradient_norm);
  // Passes steps with these samples from now on, beside those of the restored state.  If the step
  // itself was skipped, it spends no budget any more.
  void pass(const HarmfulStep& step);
  void forget_samples() { state_.harmful.clear(); }  // their numbers mean others now
  bool passes(int64_t first_sample, int64_t num_samples) const;
  // A message that the budget of skips is used up, with the remedy; "" if it is not.
  std::string over_budget() const;

  int64_t skipped() const { return state_.skipped; }
  int64_t non_finite() const { return state_.non_finite; }
  HealthState state() const;
  void restore(const HealthState& state);
  // Empties the windows, when values to come cannot be compared with those before.
  void forget_values();

 private:
  struct Largest {
    double loss, norm;
  };
  enum class Of : uint8_t { kWindow, kBeforeSkip };
  // The reason why the step is a spike over the largest values of these steps; "" if it is none.
  std::string spike(double loss, double norm, const Largest& largest, Of of) const;

  HealthSpec spec_;
  Window losses_, norms_;
  std::optional<Largest> before_;  // before the skips that ended with the last finite step
  HealthState state_;              // counters and recent skips, without the windows
};

}  // namespace ashlar::train
