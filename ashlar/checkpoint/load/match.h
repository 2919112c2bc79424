// Checks that a step holds what a load wants from it, before a byte is written.
#pragma once

#include <span>

#include "ashlar/checkpoint/load/step_reader.h"

namespace ashlar::checkpoint {

// Compares names, shapes and types of all destinations with what is stored, as the options allow;
// nothing is read.  kConfig: everything that does not match, in one message.
LoadReport match(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options);

// kCorrupt unless boxes tile every stored tensor of the components, or, with only_these, every
// tensor that has a destination, whatever part of it is wanted: a hole is damage wherever it is.
// Each of several ranks checks its share of the tensors, or those of its own destinations.
void check_cover(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options, int rank, int num_ranks);

}  // namespace ashlar::checkpoint
