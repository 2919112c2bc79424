// Rules of [parallel]; part of validate.cpp and resolve_parallel.  "" where the recipe keeps them.
#pragma once

#include <string>

#include "ashlar/spec/recipe.h"

namespace ashlar {

// Those that hold whatever the number of ranks.
std::string parallel_problem(const Recipe& recipe);

}  // namespace ashlar
