// Steps of a few layouts of a recipe, timed for a calibration of simulations.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/bench/machine/recipe_products.h"
#include "ashlar/train/loop.h"

namespace ashlar::bench {

struct LayoutSteps {
  double step_s = 0;         // median over the rounds of the median over the steps
  double spread = 0;         // of the rounds: (largest - smallest) / smallest
  double foreign_share = 0;  // the largest of the rounds that count
};

// Layouts that spread over what a mesh of so many ranks can do, at most `most`, as keys: plain data
// parallelism first, then one axis each, as far as the recipe allows them.
std::vector<std::string> layouts_to_calibrate(
    int num_ranks, size_t most, const std::function<Recipe(const std::string& keys)>& recipe_of);

// Every rank calls it.  All layouts run in each of the rounds, on random tokens; a run that others
// disturb is repeated, at most twice.  done: called on rank 0 after each run.
std::vector<LayoutSteps> measure_layout_steps(std::span<const Layout> layouts,
                                              const train::RankResources& resources, int64_t steps,
                                              int64_t rounds, const std::function<void()>& done);

}  // namespace ashlar::bench
