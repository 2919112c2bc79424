// Where the time of a training step goes: every kernel call of real steps, timed, beside its floor.
//
//   floor of a call = max(flop / measured peak, bytes / measured triad);  share = floor / time
//
// A call's time runs until the next one begins, so what little happens between calls counts too.
#pragma once

#include <string>
#include <vector>

#include "ashlar/spec/recipe.h"

namespace ashlar::bench {

struct OpRow {
  std::string op;
  int64_t calls = 0;           // of one step
  double flop = 0, bytes = 0;  // of one step
  double seconds = 0;          // median over the steps, of their sum within a step
  double floor_s = 0;
};

struct StepReport {
  std::vector<OpRow> rows;                  // longest first
  double step_s = 0, min_s = 0, p99_s = 0;  // median, minimum, p99 over `steps`
  int64_t steps = 0;
  double tokens_per_s = 0, mfu = 0;
  double peak_flops = 0, triad_bytes_per_s = 0;
};

// Runs the recipe's step on random tokens: 3 steps to warm up, then `steps` timed.
StepReport measure_step(const Recipe& recipe, int64_t steps);

std::string to_text(const StepReport& report);
std::string to_json_line(const StepReport& report, const Recipe& recipe);

// Bytes per second of a = b + s c over arrays that no cache holds, all threads; 3 arrays of 64 MiB.
double measure_triad(int num_threads);

}  // namespace ashlar::bench
