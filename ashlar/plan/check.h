// The check of a recipe and a layout: what the trainer would refuse, and rules of shapes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/plan/simulate.h"
#include "ashlar/sizing/rules.h"

namespace ashlar::plan {

struct Check {
  std::string recipe;
  int64_t num_ranks = 1;
  std::string mesh;  // "" where the ranks form none
  std::vector<sizing::RuleFinding> findings;
  bool has_error() const;
};

// An error is exactly what the trainer refuses at a start, in its words; after one the rules cannot
// be applied.  machine: null for the rules that need none.
Check check(FileSystem& files, const std::string& recipe, const std::vector<std::string>& overrides,
            int64_t num_ranks, const MachineFile* machine);

std::string describe(const Check& check, const MachineFile* machine);
std::string to_json(const Check& check, const MachineFile* machine);

}  // namespace ashlar::plan
