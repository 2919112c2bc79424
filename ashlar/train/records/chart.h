// A small chart for the terminal: the loss of a run over its steps.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ashlar::train {

using Curve = std::vector<std::pair<int64_t, double>>;  // (step, value), steps not falling

// Draws `loss` as '*' (the mean of each column's steps) and `validation` as 'o', with axes; "" for
// fewer than two steps.
std::string render_chart(const Curve& loss, const Curve& validation, int columns = 64,
                         int rows = 12);

// The curves in the lines of a metrics.jsonl; if a resumed run did a step again, the later row
// counts.
struct RunCurves {
  Curve loss, validation;
};
RunCurves read_curves(const std::string& metrics_jsonl);

}  // namespace ashlar::train
