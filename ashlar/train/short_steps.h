// Two short steps that stand for a long one.  Once a pipeline is full, the cost, traffic, events
// and time of a step grow equally with every period of its micro-batches, so a step of a hundred
// thousand micro-batches need not be run whole.
#pragma once

#include <optional>

#include "ashlar/spec/recipe.h"

namespace ashlar::train {

struct ShortSteps {
  Recipe shorter, longer;  // the same recipe with fewer micro-batches; the longer has a period more
  int64_t times = 0;       // periods between the shorter step and the whole one

  // A number of the whole step, from those of the two.
  template <typename T>
  T grown(T of_shorter, T of_longer) const {
    return of_shorter + T(times) * (of_longer - of_shorter);
  }
};

// nullopt: the step is short enough to be run whole.
std::optional<ShortSteps> short_steps(const Recipe& recipe, const ParallelSpec& resolved);

}  // namespace ashlar::train
