// States over ranks by an exclusive scan with recursive doubling (as MPI_Exscan with an operator
// that does not commute): in round i every chunk sends what it and up to 2^i - 1 chunks before it
// do to a state to the chunk 2^i places on, which puts that before what it has.  With A chunks of a
// row each knows after ceil(log2 A) rounds what all before it do.  A baseline beside the ways of
// cp_states.h.
//
// Source   Hillis and Steele 1986, doi:10.1145/7902.7903.
// Memory   3 C (m + g) in the stream type (Tag::kCommunication), letters as in cp_states.h.
// Numerics maps are joined in another order than that of the tokens: not the bits of the others.
#pragma once

#include "ashlar/parallel/cp_states.h"

namespace ashlar::parallel {

std::unique_ptr<CpStates> make_exclusive_scan(comm::Group& ranks, const CpSplit& split,
                                              const CpStates::State& state, DType stream,
                                              Allocator& allocator);

}  // namespace ashlar::parallel
