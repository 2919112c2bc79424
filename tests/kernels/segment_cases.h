// Segment lists that a rank may hold: whole documents, pieces that start anywhere, single tokens.
#pragma once

#include <vector>

#include "ashlar/kernels/sequence.h"

namespace ashlar::kernels {

struct Piece {
  int64_t position, length;
};

inline const std::vector<std::vector<Piece>>& segment_cases() {
  static const std::vector<std::vector<Piece>> cases = {
      {{0, 1}},
      {{0, 3}},
      {{0, 17}},
      {{0, 65}},
      {{0, 5}, {0, 1}, {0, 2}, {0, 60}, {0, 1}},
      {{1, 1}},
      {{2, 1}},
      {{3, 1}, {1, 2}, {2, 2}, {0, 2}, {9, 3}},
      {{1, 63}, {2, 1}, {1, 1}, {7, 70}, {0, 64}},
  };
  return cases;
}

// Every piece is of a document of its own.
inline Sequence sequence_of(const std::vector<Piece>& pieces) {
  std::vector<Segment> segments;
  int64_t row = 0;
  for (const Piece& p : pieces) {
    segments.push_back({row, p.length, p.position, int64_t(segments.size())});
    row += p.length;
  }
  return Sequence(segments);
}

}  // namespace ashlar::kernels
