// Speed of the recurrence of linear attention, forward and backward, beside the peak of the
// machine's registers.
//
// Every row warms up, then repeats for about 0.3 s; times are wall clock over all threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/kernels/recurrence.h"

namespace ashlar::bench {

struct RecurrenceRow {
  std::string name, op;  // "delta", "backward"
  int64_t tokens;
  kernels::RecurrenceShape shape;
  double flop = 0;  // as recurrence.h counts them
  double median_s = 0, min_s = 0;
  int64_t repeats = 0;
  double flops() const { return flop / median_s; }
};

struct RecurrenceReport {
  std::string isa, compute;
  int threads = 0;
  double peak_flops = 0;  // all threads
  std::vector<RecurrenceRow> rows;
};

// One sequence of `num_tokens`; compute: BF16 or F32, on isa().
RecurrenceReport measure_recurrences(int num_threads, DType compute, int64_t num_tokens);

std::string to_text(const RecurrenceReport& report);
std::string to_json_line(const RecurrenceReport& report);

}  // namespace ashlar::bench
