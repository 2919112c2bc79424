// The trace of a rank as a JSON file in Chrome's trace-event format, which Perfetto opens.
// docs/formats/trace.md describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/tensor/trace.h"

namespace ashlar::train {

// A recorded step, in seconds of this rank's clock.
struct TracedStep {
  int64_t number = 0;
  double before_s = 0;  // the end of the previous step, recorded or not
  double start_s = 0, end_s = 0;
  double loader_wait_s = 0;  // within the step
};

struct TraceFile {
  int rank = 0, num_ranks = 1;
  // The steps in which the trace was recording, and only these; at least one.
  std::vector<TracedStep> steps;
  double clock_ahead_s = 0;  // of rank 0's clock
  double origin_s = 0;       // time 0 of the file, on rank 0's clock
  bool dry = false;          // of a dry run, whose times mean nothing
  int64_t tokens = 0;        // of a step, of all ranks; 0: not written
  std::string device = "";   // the GPU's name; "": the CPU
};

// One event a line; the first and the last line open and close the list.
std::string to_chrome_json(const Trace& trace, const TraceFile& file);

}  // namespace ashlar::train
