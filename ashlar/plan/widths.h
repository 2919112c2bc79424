// Shapes of a mixture side by side: `ashlar plan widths` (sizing/moe_widths.h).
#pragma once

#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"
#include "ashlar/sizing/moe_widths.h"

namespace ashlar::plan {

struct Widths {
  std::string recipe;
  sizing::MixtureShape own;
  std::vector<sizing::MoeChoice> choices;  // the recipe's own shape first
  std::vector<std::string> notes;          // about assumptions
};

// The first machine trains, and all of them generate.
Widths widths_of(const Recipe& recipe, const std::vector<MachineFile>& machines,
                 const sizing::MoeWidthsOptions& options);

// Tables of the front of every machine, fastest training first.
std::string describe(const Widths& widths, const std::vector<MachineFile>& machines);
std::string to_json(const Widths& widths, const std::vector<MachineFile>& machines);
// Seconds of a token where it trains and where it generates: the fronts, and the recipe's shape.
std::string to_svg(const Widths& widths, const std::vector<MachineFile>& machines);

}  // namespace ashlar::plan
