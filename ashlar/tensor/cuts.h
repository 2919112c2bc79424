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

enum class CutGroups { kAny, kWholeExperts };
// A part may weigh so many times the mean for the sake of a better cut.
constexpr double max_part_weight(CutGroups groups) {
  return groups == CutGroups::kAny ? 1.04 : 1.05;
}

// Cuts elements [0, end) of the row into num_parts: num_parts + 1 ascending positions, multiples of
// `align`, but for the last, which is `end`.  row: ascending, disjoint; what lies between stretches
// weighs nothing.  A part may be empty where there are few elements.
//
// Each cut is at a row of the outermost dim (an expert of a stack) that keeps all parts within
// max_part_weight, and this one within 10 % below what is left for each; else at a row of the next
// dim, and so on; else where parts are even.  A pure function: whoever has the same row gets the
// same cuts.
//
// kWholeExperts: groups of 1, 2, 4, 8, ... parts begin and end between experts or other tensors,
// the fewest for which no group weighs more than 1.04 times the mean, or 1.05 times where it is one
// part; parts are cut as above where no number does.  That is for rows whose tensors are themselves
// parts, of which others have the rest and cut it alike: the tensors of a group are then whole, and
// boxes of its parts join.
std::vector<int64_t> even_cuts(std::span<const Stretch> row, int64_t end, int64_t num_parts,
                               int64_t align, CutGroups groups = CutGroups::kAny);

}  // namespace ashlar
