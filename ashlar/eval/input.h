// The data that a model is evaluated on: a dataset whose ids mean to the model what they meant to
// its tokenizer, and of it all or the part that training held out.
#pragma once

#include <optional>
#include <string>

#include "ashlar/data/sources.h"
#include "ashlar/eval/load.h"

namespace ashlar::eval {

struct InputSpec {
  std::string data;    // PREFIX of the dataset
  int64_t length = 0;  // tokens of a sample, at most
  bool all = false;    // else what training held out
  // Replaces what the checkpoint's recipe says of the held-out part.
  std::optional<double> validation_fraction;
  bool any_tokenizer = false;  // whatever tokenizer made the ids
};

struct Input {
  data::Source source;
  std::string doubt;      // why nothing says that model and dataset share a tokenizer; "": they do
  std::string beginning;  // how its documents begin otherwise than the model's texts; "": alike
};

// The held-out part is cut as training cut it, by the recipe that a checkpoint records; of a model
// without a recipe it is the tail of validation_fraction (or its default in recipes), and no
// longer, however long a sample is.  The last sample is shorter where the others leave a rest.
//
// Errors  kData of IndexedDataset.  kConfig: another tokenizer; a larger vocabulary; a recipe that
//         held nothing of the data out; a part of a single token.
Input open_input(FileSystem& files, const ModelSource& model, const InputSpec& spec);

}  // namespace ashlar::eval
