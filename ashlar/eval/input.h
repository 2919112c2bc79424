// The data that a model is evaluated on: a dataset prepared with the model's tokenizer, or the part
// of it that training held out.
#pragma once

#include <optional>
#include <string>

#include "ashlar/data/sources.h"
#include "ashlar/eval/load.h"

namespace ashlar::eval {

struct InputSpec {
  std::string data;    // PREFIX of the dataset
  int64_t length = 0;  // the most tokens of a sample
  bool all = false;    // false: the part that training held out
  // Replaces the fraction that the checkpoint's recipe holds out.
  std::optional<double> validation_fraction;
  bool any_tokenizer = false;  // accepts ids of any tokenizer
};

struct Input {
  data::Source source;
  std::string doubt;      // why model and dataset may have different tokenizers; "": they share one
  std::string beginning;  // how its documents begin unlike the model's texts; "": alike
};

// The held-out part is cut as training cut it, by the recipe in the checkpoint.  Without a recipe
// it is the tail of validation_fraction (or the default of recipes), and no longer, whatever the
// length of samples.  The last sample may be shorter than the others.
//
// Errors  kData of IndexedDataset.  kConfig: another tokenizer; a larger vocabulary; a recipe that
//         held nothing of the data out; a part of a single token.
Input open_input(FileSystem& files, const ModelSource& model, const InputSpec& spec);

}  // namespace ashlar::eval
