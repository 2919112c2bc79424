// How many rounds (transport.h) an operation takes, as a function of what it is.  The collectives
// are built on it, a recording world counts by it, and a simulator can call it.
//
//   op               rounds
//   all_reduce       one a slice of the longest chunk, in which it is summed; one that gathers
//   reduce_scatter   one a slice
//   reduce           two a slice: its sum, then its way to the root
//   broadcast        two; one where a group has two ranks, and for the root
//   all others       one; an all_to_all in place: one a slice of what goes to one rank
//
// Chunks are those of group.h.  A slice is what the staging memory of a lane holds of one chunk
// from every rank.  An operation without elements still takes a round.
#pragma once

#include <cstdint>

#include "ashlar/comm/operation.h"

namespace ashlar::comm {

// Whole cache lines.  num_ranks: of the group.
int64_t slice_bytes(int num_ranks, int64_t staging_bytes);

// longest_bytes: of the longest chunk.  Without staging memory nothing is sliced.
int64_t num_slices(int64_t longest_bytes, int num_ranks, int64_t staging_bytes);
int64_t rounds_of(Op op, int64_t longest_bytes, int num_ranks, int64_t staging_bytes);

// The longest chunk of an operation on so many elements whose chunks are even.
int64_t longest_chunk_bytes(int64_t numel, int num_ranks, DType dtype);

}  // namespace ashlar::comm
