// A recipe as a run takes it: keys that it leaves out of [model] are taken from the weights that
// the run begins with (init.model), and from the run's newest step once there is one, so that the
// directory of init.model may be gone.  No weights are read.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// from_step: the step that the run is to continue from, if not the newest.
// Errors   those of load_recipe and models::describe_source; kConfig if init.model names nothing,
//          or the recipe states other sizes.
Recipe read_recipe(FileSystem& files, const std::string& path,
                   std::span<const std::string> overrides, std::optional<int64_t> from_step = {});

// kConfig unless init.model exists.
void require_first_weights(FileSystem& files, const std::string& init_model);

// For a dry run: warns, as a start does (first_weights.h), of every key of the model in which the
// recipe of a new run differs from init.model.
void warn_of_other_model(FileSystem& files, const Recipe& recipe, Log& log);

}  // namespace ashlar::train
