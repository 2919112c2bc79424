// The companions of a model (models/companions.h) that a run keeps and passes on.
#pragma once

#include <span>
#include <string>

#include "ashlar/core/log.h"
#include "ashlar/data/sources.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/models/companions.h"
#include "ashlar/spec/model_spec.h"

namespace ashlar::train {

// The companions that a run takes over: those of the weights that it began with or continues from;
// a run from a seed has none.
struct Inherited {
  models::Companions companions = {};
  std::string place = {};                   // the place of the weights, for messages
  std::vector<int64_t> eos_token_ids = {};  // their model's
};

// The tokenizer is the run's: if that of `inherited` differs, its files are left out, with a
// warning. Stop ids that the run states replace different ones of generation_config.json.
// Documents begin as in the training data; if the model's files state otherwise, a warning says so.
// tokenizer: null if the run has none.
// Errors  kData for files of a tokenizer or of generation that are malformed.
models::Companions run_companions(Inherited inherited, const ModelSpec& model,
                                  const data::Tokenizer* tokenizer,
                                  std::span<const data::Source> training, Log& log);

}  // namespace ashlar::train
