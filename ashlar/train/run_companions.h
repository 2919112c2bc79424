// What of a model's companions (models/companions.h) a run keeps and passes on.
#pragma once

#include <span>
#include <string>

#include "ashlar/core/log.h"
#include "ashlar/data/sources.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/models/companions.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::train {

// The companions with which training goes on: those of the weights that it began with or continues
// from; of a run from a seed, none.
struct Inherited {
  models::Companions companions = {};
  std::string place = {};                   // of the weights, for messages
  std::vector<int64_t> eos_token_ids = {};  // of their model
};

// The tokenizer is the run's: where it is another than that of `inherited`, the files of the latter
// stay behind, with a warning.  Stop ids that the run states otherwise replace those of
// generation_config.json.  How documents begin is as the training data has it; where the model's
// files say otherwise, that is a warning.  tokenizer: null where the run has none.
// Errors  kData for files of a tokenizer or of generation that are none.
models::Companions run_companions(Inherited inherited, const ModelSpec& model,
                                  const data::Tokenizer* tokenizer,
                                  std::span<const data::Source> training, Log& log);

}  // namespace ashlar::train
