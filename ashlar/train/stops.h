// When a run stops.  A single rank may know of a signal, of the time, or of a failed save; all
// ranks vote, so that they leave the loop, or save, at the same place.
//
// Ranks vote after every step.  In steps that take seconds they also vote between micro-batches,
// about twice a second: a signal then ends the step, which is left undone.
#pragma once

#include <cstdint>

#include "ashlar/comm/group.h"
#include "ashlar/core/clock.h"
#include "ashlar/core/signals.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// Thrown on all ranks if a step is left undone.  After it the caller calls Trainer::skip(), and
// then only reads what a save needs: weights and optimizer, which a step changes at its end.
struct StepLeft {};

class Stops {
 public:
  // parallel: resolved.
  Stops(comm::Group& ranks, const StopSignals& signals, const Recipe& recipe,
        const ParallelSpec& parallel);

  // Whether all ranks run the micro-batches of a step one after another, and vote between them.
  // False in a pipeline, whose stages run different ones at a time, and while steps are traced.
  bool divides_steps() const { return divides_steps_; }

  // To be called before the first step: whether not to run it at all.
  bool asked();
  // Sets the reply that a signal gets during the step.
  void begin_step();
  // To be called after micro-batch `number` of a step.  Throws StepLeft.
  void after_micro_batch(int64_t number);
  // To be called before batch `number` of an evaluation: whether to skip the rest.
  bool asked_in_evaluation(int64_t number);
  // To be called after a step that took `seconds`.
  struct Votes {
    bool signal, time_up, second_try;
  };
  Votes after_step(double seconds, bool wants_second_try);
  // To be called before the last save.
  void ending();

  // Until train.max_minutes are over; infinite without that key.
  double seconds_left() const;

 private:
  bool leads() const { return ranks_.rank() == 0; }
  void answer_in_step(double seconds) const;

  comm::Group& ranks_;
  const StopSignals& signals_;
  const int64_t num_micro_batches_;  // in a step, on this rank
  const bool divides_steps_;
  const double most_s_;  // for this start; 0: no limit
  const Clock::time_point start_ = Clock::now();
  double step_s_ = -1.0;    // time of the last step; below 0: there was none
  int64_t vote_every_ = 1;  // micro-batches between votes
};

}  // namespace ashlar::train
