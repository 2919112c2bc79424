// A dry run as people read it.  docs/plan.md explains it.
#pragma once

#include "ashlar/plan/mesh.h"

namespace ashlar::plan {

// Mesh, model, memory and traffic by class, or of the fullest of more than eight; a saved step;
// flop by kernel.
std::string describe(const MeshPlan& plan, const Recipe& recipe, DType compute);

// "0-3, 8, 10-20 step 5": ascending numbers.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace ashlar::plan
