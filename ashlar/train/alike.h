// What all ranks must have alike, though each process finds it by itself: its recipe, its program,
// and what it reads by paths under which another machine may have other files.
//
// Errors   kConfig on all ranks, before anything of the run is touched: the first rank that differs
//          from rank 0 and the first thing in which it does, both values, both hosts, and what to
//          do.
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

// Every rank calls it, with the same keys or not.
void require_alike(comm::Group& ranks, std::span<const Fact> facts, std::string_view label,
                   std::string_view remedy);

// The program, the instruction set that it uses, then every key of the recipe.
void require_one_program(comm::Group& ranks);
void require_one_recipe(comm::Group& ranks, const Recipe& recipe);

// Tokens, documents and a fingerprint of every dataset, the tokenizer if there is one, and the
// model of init.model if it is read.  Fingerprints are of a sample of large files
// (core/file_sample.h), and of the checksums that were recorded of them.
void require_same_inputs(comm::Group& ranks, FileSystem& files, const Recipe& recipe,
                         const data::Sources& sources, const data::Tokenizer* tokenizer,
                         const std::optional<models::ModelSource>& first_weights);

// Whether this rank is the first of those that read the same copy of the datasets, which it then
// verifies for them.  Every rank calls it.
bool is_first_of_copy(comm::Group& ranks, const data::Sources& sources);

}  // namespace ashlar::train
