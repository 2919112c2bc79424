// The time that a GPU took for each function, from the trace of a run (docs/formats/trace.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

struct RecordedRun;

// Sums over the steps of one trace file.
struct DeviceTimes {
  struct Function {
    std::string name, phase;  // "adamw" in "optimizer"
    int64_t num_calls = 0, num_launches = 0;
    double seconds = 0, flop = 0, bytes = 0;
  };
  std::string device;   // "": the run has no trace of a GPU
  std::string problem;  // why its last trace is not read; "": there is none
  int64_t first_step = 0, num_steps = 0;
  double steps_s = 0;               // all steps together
  std::vector<Function> functions;  // a function once in each phase, in the order of their calls
};

// The sums over the last steps that rank 0 recorded.
DeviceTimes read_device_times(FileSystem& files, const std::string& run_directory);

PageSection device_section(std::span<const RecordedRun> runs);

}  // namespace ashlar::report
