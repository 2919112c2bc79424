// The times of a training step's parts: every kernel call of real steps, compared with its floor
// (floors.h).
//
//   share = floor / time
//
// A call's time runs until the next call begins, so it includes the little work between calls.  The
// sum of all floors is the time of a step that this machine allows: no call of it could be faster.
#pragma once

#include <string>
#include <vector>

#include "ashlar/bench/floors.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/placing.h"

namespace ashlar::bench {

struct OpRow {
  std::string op;
  int64_t calls = 0;           // of one step
  double flop = 0, bytes = 0;  // of one step
  double seconds = 0;          // of all calls of a step; median over the steps
  double floor_s = 0;
  double outside_caches_s = 0;  // the floor if no cache held an operand
  double above_s() const { return seconds - floor_s; }
};

struct StepReport {
  std::vector<OpRow> rows;                  // longest first
  double step_s = 0, min_s = 0, p99_s = 0;  // median, minimum, p99 over `steps`
  int64_t steps = 0;
  int64_t tokens = 0;  // of a step
  double mfu = 0;
  Floors floors;
  double tokens_per_s() const { return double(tokens) / step_s; }
  // Sums over all calls of a step.
  double floor_s() const;
  double outside_caches_s() const;
  double share() const { return floor_s() / step_s; }
  std::vector<OpRow> most_above() const;  // the three kernels that lose most time
};

// Runs the recipe's step on random tokens: 3 steps to warm up, then `steps` timed ones.
StepReport measure_step(const Recipe& recipe, int64_t steps,
                        train::Binding binding = train::Binding::kCache);

std::string to_text(const StepReport& report);
// Three lines, with which to_text ends: what a step could reach, what it reaches, and the kernels
// that lose most.
std::string closing_lines(const StepReport& report);
std::string to_json_line(const StepReport& report, const Recipe& recipe);

}  // namespace ashlar::bench
