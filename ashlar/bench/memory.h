// Peak memory and time of real training steps, for several layouts and several lengths of a
// sequence.
//
// Each case trains on random tokens with ranks that are threads of this process.  Each has an
// allocator of its own, whose peak is reported beside the peak of the plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ashlar/core/statistics.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/allocator.h"
#include "ashlar/train/placing.h"

namespace ashlar::bench {

struct MemoryOptions {
  int num_ranks = 1;
  int64_t steps = 2;
  std::vector<std::string> layouts;  // overrides of the recipe, "key=value key=value"; "" is none
  std::vector<int64_t> lengths;      // data.sequence_length; empty: the recipe's
  train::Binding binding = train::Binding::kCache;
};

struct MemoryCase {
  std::string layout;
  int64_t sequence_length = 0;
  MemoryCounts counts;        // of the rank with the highest peak
  int64_t planned_bytes = 0;  // the peak of that rank's plan
  Summary step{};             // of rank 0, without the first; seconds
};

// `recipe_with` reads the recipe with more overrides.  Calls `done` after each case.
// Errors   kLaunch: under a launcher, since the ranks are threads of this process; kConfig: a
//          layout that num_ranks ranks cannot run; those of train::Trainer.
std::vector<MemoryCase> measure_memory(
    const std::function<Recipe(const std::vector<std::string>& overrides)>& recipe_with,
    const MemoryOptions& options, const std::function<void(const MemoryCase&)>& done);

// One line for each case under a head; MiB.  options: those of the measurement, whose longest
// layout sets the width of the first column.
std::string memory_head(const MemoryOptions& options);
std::string to_text(const MemoryCase& c, const MemoryOptions& options);
std::string to_json_line(const MemoryCase& c, const Recipe& recipe);
// Plots of the peak over the length, and of the median step, with a line for each layout.
std::string to_svg(const std::vector<MemoryCase>& cases, const std::string& title);
std::string times_to_svg(const std::vector<MemoryCase>& cases, const std::string& title);

}  // namespace ashlar::bench
