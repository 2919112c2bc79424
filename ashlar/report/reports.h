// A report on whatever paths hold: directories of runs, profiles of machines, plans.
#pragma once

#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/report/page.h"

namespace ashlar::report {

// One page about all of them, over each other.  A path is a directory of a run, a profile (a file
// NAME.toml, or the name of one that the program carries), or a plan (NAME.json).
// `baseline`: the profile with which those of the paths are compared; "": none.  A table of kernels
// beside a profile is shown, or why it cannot be.
// Errors   those of reading; kConfig for paths of different kinds, except plans with one profile,
//          and for a baseline of anything but profiles.
Page page_of(FileSystem& files, const std::vector<std::string>& paths,
             const std::string& baseline = "");

// The files that the page of this path is made from.
std::vector<std::string> files_of(FileSystem& files, const std::string& path);

}  // namespace ashlar::report
