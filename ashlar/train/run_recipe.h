// RUN_DIR/recipe.toml: all keys as the latest start of the run resolved them, for people.
//
// Every start overwrites the file of the start before.  A file of the user's with this name, which
// the run would destroy, is refused; the program's own begins with a line that identifies it.
#pragma once

#include "ashlar/core/files.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// kConfig if the file exists and no run wrote it.  Older versions wrote no such line: if the run
// has a directory of checkpoints the file counts as its own.
void require_own_recipe(FileSystem& files, const Recipe& recipe);
void write_run_recipe(FileSystem& files, const Recipe& recipe);

}  // namespace ashlar::train
