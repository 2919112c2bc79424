// Rules for shapes and layouts that products, links and memory of a machine like: R1 to R16 of
// docs/plan.md#rules.
//
// A rule only warns: whether a run may start at all is the trainer's own decision
// (spec/parallel_rules.h), which rules do not repeat.
//
// Source  the co-design of architectures and hardware, arXiv:2401.14489; ZAYA1, arXiv:2511.17127.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::sizing {

enum class Severity : uint8_t { kError, kWarning, kInfo };
inline constexpr std::array<std::string_view, 3> kSeverityNames = {"error", "warning", "info"};

struct RuleFinding {
  std::string rule;  // "R8", or "recipe" for what no rule names
  Severity severity = Severity::kWarning;
  std::string text;                  // the broken formula with its numbers
  std::string cost;                  // an estimate; "" where nothing known tells it
  std::vector<std::string> choices;  // the nearest values that keep the rule: "parallel.tp=8"
};

struct RuleInput {
  Recipe recipe;
  ParallelSpec parallel;                      // resolved
  const machine::Profile* machine = nullptr;  // null: rules that need one are silent
};

// A product of a block on one rank, [rows, depth] x [depth, cols], forward.
struct BlockProduct {
  std::string name;
  int64_t rows = 0, cols = 0, depth = 0;
  int64_t groups = 1;         // in one launch
  std::string cols_key = {};  // of the recipe, on which cols depend in proportion; "": none
  int64_t cols_unit = 1;      // cols of one unit of that key
  int64_t times = 1;          // blocks that have it
  double flop() const { return 2 * double(rows) * double(cols) * double(depth) * double(groups); }
};
// The products of all blocks, each once, and the head's.
std::vector<BlockProduct> block_products(const RuleInput& input);

// All findings, in the order of the rules.
std::vector<RuleFinding> findings_of(const RuleInput& input);

}  // namespace ashlar::sizing
