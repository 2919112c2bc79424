// Shared by the headline tests: shipped profiles, steps of recipes simulated on them, and the lines
// that docs/bench/headlines.md shows.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"
#include "ashlar/train/read_recipe.h"

namespace ashlar::plan::testing_support {

inline MachineFile shipped_machine(const std::string& name) {
  const auto files = posix_files();
  return read_machine(*files, name);
}

inline Recipe headline_recipe(const std::string& name, const std::vector<std::string>& overrides) {
  const auto files = posix_files();
  return train::read_recipe(*files, ASHLAR_FIXTURES "/../../recipes/" + name, overrides);
}

struct HeadlineStep {
  double step_s = 0;
  double forward_s = 0;  // from the first block's begin to the last block's end, on all ranks
};

// A dry run of all ranks in bf16, replayed.
inline HeadlineStep simulate_headline(const Recipe& recipe, int num_ranks,
                                      const MachineFile& machine) {
  Log log([](std::string_view) {});
  const sim::RankPrograms programs = programs_of(recipe, DType::kBF16, num_ranks, log);
  SimulateOptions options;
  options.keep_spans = true;
  const SimulatedStep step = simulate_step(programs, machine, options);
  double begin_s = step.replayed.end_s, end_s = 0;
  for (size_t r = 0; r < programs.ranks.size(); ++r)
    for (const sim::ReplaySpan& span : step.replayed.spans[r]) {
      if (span.kind == sim::ReplaySpan::Kind::kOperation ||
          span.kind == sim::ReplaySpan::Kind::kStall)
        continue;
      const sim::ProgramEvent& event = programs.ranks[r].events[size_t(span.index)];
      const sim::ProgramPlace& place = programs.places[size_t(event.place)];
      if (place.block < 0 || programs.texts[size_t(place.phase)] != "forward") continue;
      begin_s = std::min(begin_s, span.begin_s), end_s = std::max(end_s, span.end_s);
    }
  return {step.step_s, end_s - begin_s};
}

// A line of the table: gtest's own lines begin with a bracket.
template <typename... Args>
void print_headline(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print("  {}\n", fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace ashlar::plan::testing_support
