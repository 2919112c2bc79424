// A recipe as a run takes it: what it leaves out of [model] is said by the weights that the run
// begins with (init.model), and once the run has steps by the newest of them, so that the directory
// of init.model may be gone.  Of weights nothing is read.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// from_step: the step that the run is to continue from, if not the newest.
// Errors   those of load_recipe and models::describe_source; kConfig where init.model names
//          nothing, or the recipe states other sizes.
Recipe read_recipe(FileSystem& files, const std::string& path,
                   std::span<const std::string> overrides, std::optional<int64_t> from_step = {});

// kConfig unless init.model exists.
void require_first_weights(FileSystem& files, const std::string& init_model);

// Of a dry run: a warning for every key of the model that the recipe of a new run states otherwise
// than init.model, as a start gives it (first_weights.h).
void warn_of_other_model(FileSystem& files, const Recipe& recipe, Log& log);

}  // namespace ashlar::train
