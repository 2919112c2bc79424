#include "ashlar/sizing/tiles.h"

namespace ashlar::sizing {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

TileFill fill_of(int64_t M, int64_t N, int64_t units, Tile tile, int64_t groups) {
  TileFill fill;
  const int64_t rows = ceil_div(M, tile.rows), cols = ceil_div(N, tile.cols);
  fill.tiles = groups * rows * cols;
  fill.waves = ceil_div(fill.tiles, units);
  fill.tile_efficiency =
      double(M) * double(N) / (double(rows * tile.rows) * double(cols * tile.cols));
  fill.wave_efficiency = double(fill.tiles) / double(fill.waves * units);
  return fill;
}

TileFill best_fill(int64_t M, int64_t N, int64_t units, Tile tile, int64_t groups) {
  const TileFill a = fill_of(M, N, units, tile, groups);
  const TileFill b = fill_of(M, N, units, {tile.cols, tile.rows}, groups);
  return a.tile_efficiency * a.wave_efficiency >= b.tile_efficiency * b.wave_efficiency ? a : b;
}

}  // namespace ashlar::sizing
