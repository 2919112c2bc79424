// The messages of a start for people: the model, the machine, and the run that it continues.
#pragma once

#include <string>

#include "ashlar/core/log.h"
#include "ashlar/train/plan.h"
#include "ashlar/train/state.h"

namespace ashlar::train {

// The model, its size, and the machine, in one line.
std::string describe_run(const Trainer& trainer, const RunPlan& plan, const std::string& isa,
                         double peak_flops, std::string_view origin_of_peak);

// Says what a start continues from, and what has changed since the step was saved.  True: numbers
// of the steps before cannot be compared with those to come, so the windows of health begin anew.
bool report_resumed(const Restored& saved, const Trainer& trainer, const std::string& isa,
                    bool same_data, Log& log);

}  // namespace ashlar::train
