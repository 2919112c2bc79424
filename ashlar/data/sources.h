// The datasets of a run: opened, checked against each other, cut into training and validation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/data/indexed.h"
#include "ashlar/data/samples.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::data {

// One dataset, or the part of it that training or validation may read.
struct Source {
  std::shared_ptr<const IndexedDataset> dataset;
  Samples samples;
  double weight = 1;

  const std::string& prefix() const { return dataset->prefix(); }
};

struct Sources {
  std::vector<Source> train;
  std::vector<Source> validation;  // empty: no data.validation and a fraction of 0
};

// Opens one dataset; errors begin with the key or flag that names it.
std::shared_ptr<const IndexedDataset> open_dataset(FileSystem& files, const std::string& prefix,
                                                   std::string_view key);

// Opens data.train and data.validation.  Without data.validation the tail of each training dataset
// is held out: validation_fraction of its tokens, at least one sample.  It begins at the nearest
// document border, if one is within half of the held-out part (with best fit: always).
//
// Errors  begin with the key that names the dataset; `train_key` is the user's name for data.train.
//         kData of IndexedDataset; kData if two datasets were prepared with different tokenizers;
//         kConfig if a dataset's vocabulary is larger than the model's, or a part holds no sample.
Sources open_sources(FileSystem& files, const DataSpec& spec, int64_t vocab_size,
                     std::string_view train_key = "data.train");

// A whole dataset as one source, for evaluation.  With Rest::kKeep every token except the first is
// a target, and samples are no longer than the data.  Errors as above, after the flag `key`.
Source open_source(FileSystem& files, const std::string& prefix, int64_t sequence_length,
                   Packing packing, int64_t vocab_size, std::string_view key,
                   Rest rest = Rest::kDrop);

// The part that open_sources would hold out of a training dataset, regardless of the other datasets
// of `training`, as samples of at most sequence_length, keeping the rest: no training token is
// read.
Source open_held_out(FileSystem& files, const std::string& prefix, const DataSpec& training,
                     int64_t sequence_length, int64_t vocab_size, std::string_view key);

// data.tokenizer or, if that is empty, the tokenizer of the first training dataset that has one or
// a sidecar; null if none has, as datasets of other programs.  kData if a dataset was prepared with
// another tokenizer, or if one without a sidecar holds ids outside of the tokenizer; all its tokens
// are examined, or a part of a large dataset (looked_at).  Errors begin with the key that names the
// file.
std::unique_ptr<Tokenizer> tokenizer_of(FileSystem& files, const DataSpec& spec);

// The beginnings of the blocks of kBlockTokens of a dataset that are examined before a run: all, or
// kMostBlocks, spread evenly from the first to the last.
inline constexpr int64_t kBlockTokens = 1 << 20, kMostBlocks = 64;
std::vector<int64_t> looked_at(int64_t num_tokens);

}  // namespace ashlar::data
