// The report of a start on its recipe: its changes to the run that it continues, beyond the list of
// keys (differences()), and a schedule that is hardly intended.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// The reasons why losses and gradient norms after `step` cannot be compared with those up to it:
// keys, and "the learning rate".  Empty if they can.
std::vector<std::string> incomparable(const Recipe& before, const Recipe& now, int64_t step);

// "the rate of step 11 is 4e-04, that of step 10 was 1e-04" if the recipe before gives step 11
// another rate, else "".  step: the last one that is done.
std::string rate_change(const Recipe& before, const Recipe& now, int64_t step);

// Logs the changes that a start makes to the run that it continues after `step`, whose recipe is
// `saved_recipe` (place: for messages); `others` are lines about further changes.  Returns
// incomparable(), or "the recipe" if the saved one cannot be read.
std::vector<std::string> report_changes(const std::string& saved_recipe, const std::string& place,
                                        const Recipe& now, std::span<const std::string> others,
                                        int64_t step, Log& log);

// A message that the run ends before its warm-up, with its last rate; "" if it does not.
std::string warmup_problem(const Recipe& recipe);

}  // namespace ashlar::train
