// How a product fills a device: tiles of its result, and waves of tiles over the compute units.
//
//   tiles  C = ceil(M / Tm) ceil(N / Tn)     tile efficiency = M N / (C Tm Tn)
//   waves  W = ceil(C / U)                   wave efficiency = C / (W U)
//
// Source  the co-design of architectures and hardware, arXiv:2401.14489.
#pragma once

#include <cstdint>

namespace ashlar::sizing {

struct Tile {
  int64_t rows = 256, cols = 128;  // where a library does not say its own
};

struct TileFill {
  int64_t tiles = 0, waves = 0;
  double tile_efficiency = 0, wave_efficiency = 0;
};
// The result [M, N] of a product, or of `groups` products in one launch, on U units.
TileFill fill_of(int64_t M, int64_t N, int64_t units, Tile tile = {}, int64_t groups = 1);
// The better of the tile and its transpose.
TileFill best_fill(int64_t M, int64_t N, int64_t units, Tile tile = {}, int64_t groups = 1);

}  // namespace ashlar::sizing
