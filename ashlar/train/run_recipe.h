// RUN_DIR/recipe.toml: all keys as the latest start of the run resolved them, for people.
//
// Every start writes it anew, over that of the start before.  A file of the user's with this name,
// which the run would destroy, is refused; ours begins with a line that says so.
#pragma once

#include "ashlar/core/files.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// kConfig if the file is there and no run wrote it.  Runs of older versions wrote no such line:
// where the run has a directory of checkpoints the file counts as its own.
void require_own_recipe(FileSystem& files, const Recipe& recipe);
void write_run_recipe(FileSystem& files, const Recipe& recipe);

}  // namespace ashlar::train
