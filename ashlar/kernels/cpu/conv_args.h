// The rows of conv.h on the vectors of isa(); one call per task of tokens [begin, end).
#pragma once

#include "ashlar/kernels/conv.h"
#include "ashlar/kernels/cpu/elementwise.h"

namespace ashlar::kernels::cpu {

template <typename T>
struct ConvArgs {
  const Sequence* sequence;
  int64_t C, z_stride;
  Cells<T> z, halo, w0, b0, columns;
};
void conv_rows_fast(const ConvArgs<float>& args, int64_t begin, int64_t end);

template <typename T>
struct ConvGradientArgs {
  const Sequence* sequence;
  int64_t C, z_stride, dz_stride;
  Cells<T> dcolumns, z, halo, w0, dz, dhalo;
};
// partial: dw0 [C, 2], db0 [C].
void conv_gradient_rows_fast(const ConvGradientArgs<float>& args, int64_t begin, int64_t end,
                             float* partial);

// Where a token's neighbours are: inside its segment, in the segment's halo, or nowhere.
struct ConvNeighbours {
  int64_t back, ahead;  // tokens of the segment before and after this one
  int64_t position;     // in the document
  int64_t halo;         // of the segment; -1: it starts a document
};
inline ConvNeighbours neighbours_of(const Sequence& sequence, int64_t t) {
  const auto segment_index = size_t(sequence.segment_T()[size_t(t)]);
  const Segment& s = sequence.segments()[segment_index];
  return {t - s.row, s.row + s.length - 1 - t, sequence.position_T()[size_t(t)],
          sequence.halo_of_segment()[segment_index]};
}

}  // namespace ashlar::kernels::cpu
