// Sweeps over the shapes of products, the same for every recipe; ranks compute at once.
//
//   work    y = x W^T with K = 1,024 and 7,168 columns and as many rows of x as of W, beside the
//           achievable and the sustained rate
//   groups  experts over the tokens of each, beside one dense product of as many flop
//   tiles   sizes on and off the tile: one dimension of 512 x 512 x 512 a little smaller or larger
//   grid    a coarse grid of rows and columns, for a heat map
//
// Curves in the profile state their shape: "product BF16 N 256 K 1024" over rows.  No rate is kept
// that is above the peak of the registers.
#pragma once

#include <span>
#include <utility>

#include "ashlar/bench/machine/rate_table.h"

namespace ashlar::bench {

// TFLOP/s that the registers of a rank sustain while all ranks compute: the best rank's.  All ranks
// call it.
double peak_tflops(const Rig& rig, DType compute);
// Bounds the rows of a table by it.
void limit_by_peak(const Rig& rig, DType compute, RateTable& table);

// The smallest work at which some shape reaches 90 % of the best rate.  points: GFLOP, TFLOP/s;
// 0 without any.
double flop_to_90(std::span<const std::pair<double, double>> points);

// Each adds rows and curves to the findings until time is up.
void sweep_work(const Rig& rig, DType compute, Findings& findings);
void sweep_groups(const Rig& rig, DType compute, Findings& findings);
void sweep_tiles(const Rig& rig, DType compute, Findings& findings);
void sweep_grid(const Rig& rig, DType compute, Findings& findings);
// All of them.
void sweep_products(const Rig& rig, Findings& findings);

}  // namespace ashlar::bench
