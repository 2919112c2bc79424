// The times of a training step's parts: every kernel call of real steps, compared with its floor.
//
//   floor of a call = max(flop / measured peak, bytes / measured triad);  share = floor / time
//
// A call's time runs until the next call begins, so it includes the little work between calls.
#pragma once

#include <string>
#include <vector>

#include "ashlar/spec/recipe.h"

namespace ashlar::bench {

struct OpRow {
  std::string op;
  int64_t calls = 0;           // of one step
  double flop = 0, bytes = 0;  // of one step
  double seconds = 0;          // of all calls of a step; median over the steps
  double floor_s = 0;
};

struct StepReport {
  std::vector<OpRow> rows;                  // longest first
  double step_s = 0, min_s = 0, p99_s = 0;  // median, minimum, p99 over `steps`
  int64_t steps = 0;
  double tokens_per_s = 0, mfu = 0;
  double peak_flops = 0, triad_bytes_per_s = 0;
};

// Runs the recipe's step on random tokens: 3 steps to warm up, then `steps` timed ones.
StepReport measure_step(const Recipe& recipe, int64_t steps);

std::string to_text(const StepReport& report);
std::string to_json_line(const StepReport& report, const Recipe& recipe);

// Bytes per second of a = b + s c on all threads, over 3 arrays of 64 MiB, which no cache holds.
double measure_triad(int num_threads);

}  // namespace ashlar::bench
