// The tokens of a micro-batch that each context-parallel rank holds: pure functions of logical
// coordinates, without communication.
//
// A micro-batch has num_rows rows of `length` tokens.  Every row is cut at the same places:
//   contiguous   num_ranks chunks, rank r holds chunk r
//   zigzag       2 num_ranks chunks, rank r holds chunks r and 2 num_ranks - 1 - r: the same causal
//                work on every rank
// Adjacent chunks of a rank (in the middle of zigzag) are one stretch.  A rank stores its tokens
// row by row of the batch, each row stretch by stretch: token i of the rank's part of row b is
// local row b * local_length() + i.
//
// Source   Megatron Core (zigzag); arXiv 2511.17127 for CCA.
#pragma once

#include <span>
#include <vector>

#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/segment.h"

namespace ashlar::parallel {

struct CpSplit {
  CpLayout layout = CpLayout::kZigzag;
  int num_ranks = 1;
  int64_t num_rows = 1, length = 0;  // length: tokens of a whole row
  int64_t min_chunk = 2;             // in tokens: the reach of a halo

  // Throws kConfig unless all chunks are equal and have at least min_chunk tokens.
  void check() const;
  int64_t num_chunks() const {
    return layout == CpLayout::kZigzag && num_ranks > 1 ? 2 * num_ranks : num_ranks;
  }
  int64_t chunk_length() const { return length / num_chunks(); }
  int64_t chunks_of_rank() const { return num_chunks() / num_ranks; }  // of each row
  int64_t local_length() const { return length / num_ranks; }
  int64_t local_tokens() const { return num_rows * local_length(); }
  int owner(int64_t chunk) const;
};

// Tokens [begin, end) of every row; they begin at `local` in the rank's part of the row.
struct CpStretch {
  int64_t begin, end, local;
  friend bool operator==(const CpStretch&, const CpStretch&) = default;
};
struct CpStretches {  // one or two, ascending
  CpStretch stretches[2];
  int num = 0;
  const CpStretch* begin() const { return stretches; }
  const CpStretch* end() const { return stretches + num; }
};
CpStretches stretches_of(const CpSplit& split, int rank);

// An upper bound for Sequence::num_halos of a rank, for any documents.
int64_t max_halos(const CpSplit& split, int rank);

// The row of the whole batch (b * length + token) of the rank's local row `local_row`, and the
// reverse.
int64_t whole_row(const CpSplit& split, int rank, int64_t local_row);
struct CpRow {
  int rank;
  int64_t local_row;
  friend bool operator==(const CpRow&, const CpRow&) = default;
};
CpRow row_of(const CpSplit& split, int64_t whole_row);

// Replaces `local` with the rank's segments: those of the whole rows, cut at the ends of stretches.
// Every segment of the whole rows starts its document and lies in one row.  Reuses memory.
void take_local_segments(const CpSplit& split, int rank, std::span<const Segment> whole,
                         std::vector<Segment>& local);

}  // namespace ashlar::parallel
