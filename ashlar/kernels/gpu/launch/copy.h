// Launches of kernels/gpu: copies, conversions, fills.
#pragma once

#include "ashlar/kernels/gpu/device.h"

namespace ashlar::device {

// Copies rows of any elements of one type, byte by byte.
struct CopyBytes {
  const void* from;
  void* to;
  int64_t rows, row_bytes, from_stride_bytes, to_stride_bytes;
};
std::string launch(const CopyBytes&);

// to = from, to the type of `to`, one of F32, BF16, F64; add: to += from, to in the type of from or
// from F32 to BF16.  Strides in elements.
struct Convert {
  Elements from, to;
  int64_t rows, width, from_stride, to_stride;
  bool by_vectors, adds;
};
std::string launch(const Convert&);

// Fills rows with the 8 bytes of `pattern`, repeated; unit_bytes: the shortest part of it, of 1, 2,
// 4 or 8 bytes, that repeats.
struct Fill {
  void* to;
  int64_t rows, row_bytes, stride_bytes;
  uint64_t pattern;
  int unit_bytes;
};
std::string launch(const Fill&);

// x *= factor, over n elements of F32 or BF16.
struct Scale {
  Elements x;
  float factor;
  int64_t n;
  bool by_vectors;
};
std::string launch(const Scale&);

}  // namespace ashlar::device
