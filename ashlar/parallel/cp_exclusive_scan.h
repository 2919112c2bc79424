// States over ranks by an exclusive scan with recursive doubling (like MPI_Exscan with an operator
// that does not commute).  In round i every chunk sends the joint map of itself and up to 2^i - 1
// chunks before it to the chunk 2^i places on, which puts it before its own map.  With A chunks in
// a row, each has the joint map of all chunks before it after ceil(log2 A) rounds.  A baseline
// beside the other ways of cp_states.h.
//
// Source   Hillis and Steele 1986, doi:10.1145/7902.7903.
// Memory   3 C (m + g) in the wide type (Tag::kCommunication), letters as in cp_states.h.
// Numerics maps are not joined in the order of tokens, so the bits differ from those of the others.
#pragma once

#include "ashlar/parallel/cp_states.h"

namespace ashlar::parallel {

std::unique_ptr<CpStates> make_exclusive_scan(comm::Group& ranks, const CpSplit& split,
                                              const CpStates::State& state, DType wide,
                                              Allocator& allocator);

}  // namespace ashlar::parallel
