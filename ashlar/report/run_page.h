// The report of one run, or of several over each other.
#pragma once

#include <span>
#include <string>

#include "ashlar/report/page.h"
#include "ashlar/report/run_device.h"
#include "ashlar/report/run_rows.h"

namespace ashlar::report {

// The files of a run's directory that its report reads.
inline constexpr const char* kRunFiles[] = {"metrics.jsonl", "recipe.toml"};

struct RecordedRun {
  std::string name;    // of its directory
  std::string recipe;  // the text of its recipe.toml; "" if there is none
  RunRows rows;
  DeviceTimes device = {};  // of its last trace, if it was on a GPU
};

// Errors   kData: a directory without rows, named.
RecordedRun read_run(FileSystem& files, const std::string& directory);

Page run_page(std::span<const RecordedRun> runs);
Page run_page(FileSystem& files, const std::vector<std::string>& directories);

}  // namespace ashlar::report
