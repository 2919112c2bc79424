// Cutting a row of tensors into parts of about the same weight, preferably where a part then has
// few boxes of each tensor.
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

// A part may weigh so many times the mean for the sake of a better cut.
inline constexpr double kMaxPartWeight = 1.05;

// Cuts elements [0, end) of the row into num_parts: num_parts + 1 ascending positions, multiples of
// `align`, but for the last, which is `end`.  row: ascending, disjoint; what lies between stretches
// weighs nothing.  A part may be empty where there are few elements.
//
// Neighbours may join their parts (ranks of a machine write one file), and so may those who have
// other parts of the same tensors and cut them alike (tp, ep).  So groups of 1, 2, 4, 8, ... parts
// begin and end between tensors, between the rows of the outermost dim of a stack (experts), or
// between rows of a matrix that is heavier than a group: the fewest parts a group for which no
// group weighs more than 1.04 times the mean, or kMaxPartWeight times where it is one part.  All
// parts are one group where no number does.
//
// Within a group each cut is at a row of the outermost dim that keeps all parts within
// kMaxPartWeight, and this one within 10 % below what is left for each; else at a row of the next
// dim, and so on; else where parts are even.  A pure function: whoever has the same row gets the
// same cuts.
std::vector<int64_t> even_cuts(std::span<const Stretch> row, int64_t end, int64_t num_parts,
                               int64_t align);

}  // namespace ashlar
