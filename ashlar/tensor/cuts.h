// Cuts a row of tensors into parts of about the same weight, preferably where a part then has few
// boxes of each tensor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/tensor/shape.h"

namespace ashlar {

// Elements [begin, end) of a row: elements [first, first + end - begin) of a row-major tensor.
struct Stretch {
  int64_t begin = 0, end = 0;
  Shape shape;
  int64_t first = 0;
  int64_t weight = 1;  // of each element, at least 1
};

// The most that a part may weigh, as a multiple of the mean, for the sake of a better cut.
inline constexpr double kMaxPartWeight = 1.05;

// Cuts elements [0, end) of the row into num_parts.  Returns num_parts + 1 ascending positions, all
// multiples of `align` except the last, which is `end`.  row: ascending, disjoint; elements between
// stretches weigh nothing.  A part may be empty if there are few elements.
//
// Neighbours may join their parts (ranks of a machine write one file), and so may ranks that have
// other parts of the same tensors and cut them alike (tp, ep).  Therefore groups of 1, 2, 4, 8, ...
// parts begin and end between tensors, between the rows of the outermost dim of a stack (experts),
// or between rows of a matrix that is heavier than a group.  Groups have the fewest parts for which
// no group weighs more than 1.04 times the mean, or kMaxPartWeight times if a group is one part.
// If no number satisfies this, all parts are one group.
//
// Within a group each cut is at a row of the outermost dim, if that keeps all parts within
// kMaxPartWeight, and this part at most 10 % below its share of the remaining weight; otherwise at
// a row of the next dim, and so on; otherwise where parts are even.  A pure function: equal rows
// give equal cuts.
std::vector<int64_t> even_cuts(std::span<const Stretch> row, int64_t end, int64_t num_parts,
                               int64_t align);

}  // namespace ashlar
