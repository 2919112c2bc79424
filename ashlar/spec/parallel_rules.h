// The rules of [parallel], for validate.cpp and resolve_parallel.
#pragma once

#include <string>

#include "ashlar/spec/recipe.h"

namespace ashlar {

// Checks the rules that hold whatever the number of ranks; "" if they are kept.
std::string parallel_problem(const Recipe& recipe);

}  // namespace ashlar
