// Whether what a step holds is what somebody wants of it, before a byte is written.
#pragma once

#include <span>

#include "ashlar/checkpoint/load/step_reader.h"

namespace ashlar::checkpoint {

// Compares names, shapes and types of all destinations with what is stored, as the options allow;
// nothing is read.  kConfig: everything that does not match, in one message.
LoadReport match(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options);

// kCorrupt unless its boxes tile every stored tensor of the components, or of only these, whatever
// part of it is wanted: a hole is damage wherever it lies.  Of several ranks each looks at its
// share of them, or at its own destinations.
void check_cover(const StepReader& reader, std::span<const Piece> destinations,
                 const LoadOptions& options, int rank, int num_ranks);

}  // namespace ashlar::checkpoint
