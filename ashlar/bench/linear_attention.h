// The speed of the recurrence of linear attention, forward and backward, compared with the peak of
// the machine's registers and with its floor: max(flop / peak, bytes / memory's rate).
//
// Every row warms up, then repeats for about 0.3 s; times are wall clock over all threads.
#pragma once

#include "ashlar/bench/floors.h"
#include "ashlar/bench/kernel_times.h"
#include "ashlar/kernels/recurrence.h"

namespace ashlar::bench {

struct RecurrenceRow {
  std::string name, op;  // "delta", "backward"
  int64_t tokens;
  kernels::RecurrenceShape shape;
  double bytes = 0;  // like flop, as recurrence.h counts them
  KernelTime time;
};

struct RecurrenceReport {
  KernelMachine machine;
  MemoryRates memory;
  std::vector<RecurrenceRow> rows;
  double floor_s(const RecurrenceRow& row) const;
};

// Calls visit for every recurrence, forward and backward: row has all but its times and its flop,
// which are given; body makes one call.
void each_recurrence(
    Threads& threads, DType compute, int64_t num_tokens,
    function_ref<void(const RecurrenceRow& row, double flop, function_ref<void()> body)> visit);
// One sequence of `num_tokens`; compute: BF16 or F32, on isa().
RecurrenceReport measure_recurrences(int num_threads, DType compute, int64_t num_tokens);

std::string to_text(const RecurrenceReport& report);
std::string to_json_line(const RecurrenceReport& report);

}  // namespace ashlar::bench
