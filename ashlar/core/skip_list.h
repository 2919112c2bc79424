// RUN_DIR/skips.jsonl: steps whose data did harm, a line for each.
//
//   {"step":57,"samples":[448,449],"reason":"loss is nan, gradient norm is nan"}
//
// A run passes every step that has one of these samples without an update.  `ashlar launch` adds
// lines (launch.on_numeric), and so may a person; a start of the run reads them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/files.h"

namespace ashlar {

struct HarmfulStep {
  int64_t step = 0;                   // when it did harm
  std::vector<int64_t> samples = {};  // by their numbers in the run
  std::string reason = {};            // for people
};

std::string skip_list_path(const std::string& run_directory);
// "" if there is no such file.
std::string read_skip_list(FileSystem& files, const std::string& run_directory);
// kConfig with the line's number for a line that is none of the above.  place: for messages.
std::vector<HarmfulStep> parse_skip_list(const std::string& text, const std::string& place);
// Adds lines for those steps whose samples are not all listed.
void add_to_skip_list(FileSystem& files, const std::string& run_directory,
                      std::span<const HarmfulStep> steps);

}  // namespace ashlar
