// Checks that all ranks have the same recipe, program and inputs.  Each process finds these by
// itself, and another machine may have other files under the same paths.
//
// Errors   kConfig on all ranks, before anything of the run is touched: the first rank that differs
//          from rank 0, the first difference with both values, both hosts, and the remedy.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/comm/group.h"
#include "ashlar/data/sources.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/models/source.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// One line each: "KEY = VALUE".
struct Fact {
  std::string key, value;
};

// Every rank calls it; keys may differ too.
void require_alike(comm::Group& ranks, std::span<const Fact> facts, std::string_view label,
                   std::string_view remedy);

// These compare the program and the instruction set that it uses; and every key of the recipe.
void require_one_program(comm::Group& ranks);
void require_one_recipe(comm::Group& ranks, const Recipe& recipe);

// Compares tokens, documents and a fingerprint of every dataset, the tokenizer if there is one, and
// the model of init.model if it is read.  A fingerprint covers a sample of large files
// (core/file_sample.h) and the checksums that were recorded for them.
void require_same_inputs(comm::Group& ranks, FileSystem& files, const Recipe& recipe,
                         const data::Sources& sources, const data::Tokenizer* tokenizer,
                         const std::optional<models::ModelSource>& first_weights);

// Whether this rank is the first among those that read the same copy of the datasets, and so
// verifies it for them.  Every rank calls it.
bool is_first_of_copy(comm::Group& ranks, const data::Sources& sources);

}  // namespace ashlar::train
