// The weights with which a new run begins if its recipe names some (init.model), instead of those
// from its seed.  Only weights and buffers are taken: the optimizer, the moments of balancing, the
// order of the data and all counters begin anew.
//
// A run that freezes tensors takes these at every start, because its steps do not hold them but
// name the model that does (models/base_model.h).
//
// Lengths, RoPE bases, windows, layouts and precisions may differ from those with which the weights
// were made.  Sizes may not, because they are the shapes of tensors.  Keys that the recipe leaves
// out of [model] are taken from the weights (read_recipe.h).
#pragma once

#include <optional>

#include "ashlar/comm/group.h"
#include "ashlar/data/sources.h"
#include "ashlar/models/source.h"
#include "ashlar/train/trainer.h"

namespace ashlar::train {

// Finds them and compares sizes; nullopt if the run begins from its seed, or trains all tensors and
// has steps to continue from, in which case it does not search.  Rank 0 chooses the step of a root
// for all; all ranks call it.  Takes no memory for weights and writes nothing.
// Errors  kConfig where there is no model, or one of other sizes (each is named by its key); those
//         of models::find_model.
std::optional<models::ModelSource> find_first_weights(FileSystem& files, const Recipe& recipe,
                                                      comm::Group& ranks, Log& log);

// Fills the tensors that this rank of the trainer keeps, adapters from the seed; the ranks read a
// step together (group_load_ranks.h).  Logs what the run begins with, and warns of every key of the
// model that differs from the weights' and of training data with ids of another tokenizer.
// weights_changed() is to be called when all ranks have returned.
// Errors  those of models::read_weights; kNumeric for a weight that is not finite; kData for a
//         tokenizer that is none.
void take_first_weights(FileSystem& files, const models::ModelSource& source, comm::Group& ranks,
                        const std::vector<data::Source>& training, Trainer& trainer, Log& log);

}  // namespace ashlar::train
