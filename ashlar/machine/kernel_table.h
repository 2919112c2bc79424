// The times of kernel calls beside a profile (docs/formats/machine.md#kernels).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/machine/profile.h"

namespace ashlar::machine {

// Calls of the same work: one line of the table.
struct TimedKernel {
  std::string op, dtype;
  int64_t groups = 0, rows = 0, cols = 0, depth = 0;
  int64_t flop = 0, bytes = 0;                   // of one call
  int64_t ranks = 0;                             // that computed at once
  double p10_us = 0, median_us = 0, p90_us = 0;  // of one call
  int64_t calls = 0;
};

// `path` names the file for messages.
// Errors   kData: another checksum than the profile's, other columns, a line that is none.
std::vector<TimedKernel> parse_kernel_table(const std::string& text, const KernelTableFile& file,
                                            const std::string& path);

}  // namespace ashlar::machine
