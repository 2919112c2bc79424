// When a run stops.  A rank alone may know of a signal, of the time, or of a save that failed; all
// ranks vote, so that they leave the loop, or save, at the same place.
//
// Votes are taken after every step.  Of steps that take seconds they are also taken between
// micro-batches, about two a second: a step in which a signal is heeded is left undone.
#pragma once

#include <cstdint>

#include "ashlar/comm/group.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/signals.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// Thrown on all ranks where a step is left undone.  Trainer::skip() is then to be called, and
// nothing after it but what a save reads: weights and optimizer, which a step changes at its end.
struct StepLeft {};

class Stops {
 public:
  // parallel: resolved.
  Stops(comm::Group& ranks, const StopSignals& signals, const Recipe& recipe,
        const ParallelSpec& parallel);

  // Whether the micro-batches of a step are run one after another on all ranks.  Not in a pipeline,
  // whose stages run different ones at a time; nor is it asked for while steps are traced.
  bool divides_steps() const { return divides_steps_; }

  // Before the first step: whether to make it at all.
  bool asked();
  // Tells signals what they are answered with.
  void begin_step();
  // After micro-batch `number` of a step.  Throws StepLeft.
  void after_micro_batch(int64_t number);
  // Before batch `number` of an evaluation: whether to leave the rest.
  bool asked_in_evaluation(int64_t number);
  // After a step that took so long.
  struct Votes {
    bool signal, time_up, second_try;
  };
  Votes after_step(double seconds, bool wants_second_try);
  // The last save begins.
  void ending();

  // When train.max_minutes are over; for ever without.
  double seconds_left() const;

 private:
  bool leads() const { return ranks_.rank() == 0; }
  void answer_in_step(double seconds) const;

  comm::Group& ranks_;
  const StopSignals& signals_;
  const int64_t num_micro_batches_;  // of a step, on this rank
  const bool divides_steps_;
  const double most_s_;  // of this start; 0: no limit
  const Clock::time_point start_ = Clock::now();
  double step_s_ = -1.0;    // of the last step; below 0: there was none
  int64_t vote_every_ = 1;  // micro-batches between votes
};

}  // namespace ashlar::train
