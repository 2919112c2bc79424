// The paths by which users name a model: a Hugging Face directory, a checkpoint root, one step of
// it, or a run's directory (train.run_dir), which stands for the checkpoints in it.
#pragma once

#include <string>

#include "ashlar/core/files.h"

namespace ashlar::models {

inline constexpr const char* kCheckpointsDirectory = "checkpoints";  // in a run's directory

// The directory of a run's checkpoints, if the path is a run's directory; else the path as it is.
std::string root_of_run(FileSystem& files, const std::string& path);

// kConfig, naming the step at which the first checkpoint is due, if the path is the directory or
// the root of a run that has saved nothing yet.
void require_saved(FileSystem& files, const std::string& path);

// The Hugging Face directory, root or step that the path stands for.
// Errors   kConfig if it is none of them; those of require_saved.
std::string locate_model(FileSystem& files, const std::string& path);

}  // namespace ashlar::models
