// Options of the loaders: the data that each rank reads.  The check that all ranks have the same
// inputs is in alike.h.
#pragma once

#include <span>

#include "ashlar/core/log.h"
#include "ashlar/data/loader.h"
#include "ashlar/data/tokenizer.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::train {

// The number of a rank among the readers: its dp coordinate.  Ranks that share sequences read the
// same data.
struct Reader {
  int64_t number = 0, count = 1;
};

// `tokenizer` may be null: its ids are then unknown, and only padding needs one.  Reader r of n
// reads part r of n of the logical streams.
data::LoaderOptions loader_options(const Recipe& recipe, std::span<const data::Source> sources,
                                   const data::Tokenizer* tokenizer, const Reader& reader);

// The first train.eval_sequences validation samples in their order: reader r of n reads number r,
// r + n, r + 2 n, ..., and rows without targets once none is left for it.
data::LoaderOptions validation_options(const Recipe& recipe, std::span<const data::Source> sources,
                                       const data::Tokenizer* tokenizer, const Reader& reader);

// Logs what best-fit packing, which never cuts a document, leaves out, if anything.
void report_dropped(const std::vector<data::Source>& sources, int64_t sequence_length, Log& log);

// Logs which datasets of a blend that replaces another continue, and which begin.
void report_new_blend(std::span<const data::Source> sources, const data::LoaderState& state,
                      Log& log);

}  // namespace ashlar::train
