// How a chunk is cut into tiles: at the starts of documents and where the token number is a
// multiple of kTile, so that a kept state lies between two tiles.
#pragma once

#include "ashlar/kernels/cpu/recurrence/args.h"

namespace ashlar::kernels::cpu {

struct Tile {
  int64_t begin, end;
  bool starts;  // a document: no state enters
  int64_t size() const { return end - begin; }
};

// The tile that begins at token `begin`, of a chunk that ends at chunk_end.
inline Tile tile_from(const RecurrenceArgs& x, int64_t begin, int64_t chunk_end) {
  const int64_t last = std::min(chunk_end, (begin / Recurrence::kTile + 1) * Recurrence::kTile);
  int64_t end = begin + 1;
  while (end < last && !x.starts_document(end)) ++end;
  return {begin, end, x.starts_document(begin)};
}

// The tile that ends at token `end`, of a chunk that begins at chunk_begin.
inline Tile tile_before(const RecurrenceArgs& x, int64_t end, int64_t chunk_begin) {
  const int64_t first = std::max(chunk_begin, (end - 1) / Recurrence::kTile * Recurrence::kTile);
  int64_t begin = end - 1;
  while (begin > first && !x.starts_document(begin)) --begin;
  return {begin, end, x.starts_document(begin)};
}

}  // namespace ashlar::kernels::cpu
