// The loops of BabelStream over parts of three arrays, each by the widest instructions in use.
//
//   copy c = a   mul b = s c   add c = a + b   triad a = b + s c   nstream a = a + b + s c
//   dot  sum a b
//
// Streaming stores write past the caches: no line is read before it is overwritten.  Loops end with
// a fence, so that all is written when they return.
#pragma once

#include <cstdint>

namespace ashlar::bench {

enum class StreamLoop { kCopy, kMul, kAdd, kTriad, kNstream, kDot };
inline constexpr double kStreamScale = 0.4;

struct StreamArrays {
  double *a = nullptr, *b = nullptr, *c = nullptr;
};

bool has_streaming_stores();  // whether this processor's family has them
// Elements [begin, end).  kDot returns the sum, all others 0; streaming is for loops that write.
// begin must be a multiple of 2.
double run_stream(StreamLoop loop, bool streaming, const StreamArrays& arrays, int64_t begin,
                  int64_t end);

}  // namespace ashlar::bench
