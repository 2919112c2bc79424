// A dry run as programs read it.  docs/plan.md explains the members.
#pragma once

#include <string>

#include "ashlar/plan/mesh.h"

namespace ashlar::plan {

// One JSON document in one line.
std::string to_json(const MeshPlan& plan, const Recipe& recipe, DType compute);

}  // namespace ashlar::plan
