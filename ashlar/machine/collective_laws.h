// Closed formulas of collectives over links: T = hops alpha + bytes of the busiest edge / B.  S is
// the whole array as in machine/laws.h, B a busbw, n ranks.
//
//   ring            (n - 1) alpha + (n - 1)/n S / B; all_reduce: twice that
//   tree            all_reduce: 2 log2(n) alpha + 2 S / B
//   pipelined       broadcast, reduce: (n - 2 + c) (alpha + S / (c B)) in the best c pieces
//   send_receive    alpha + S / B
//
// Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
// 2005; Sanders, Speck and Traff, "Two-tree algorithms", 2009.
#pragma once

#include <cstdint>

#include "ashlar/machine/laws.h"

namespace ashlar::machine {

// The number of latencies in a row, and the bytes that pass the busiest edge.
struct LinkLaw {
  double hops = 0, bytes = 0;
  double time_s(double alpha_s, double bytes_a_second) const {
    return hops * alpha_s + bytes / bytes_a_second;
  }
};

LinkLaw ring_law(CollectiveOp op, int64_t n, double S);
LinkLaw tree_law(int64_t n, double S);  // of an all_reduce
LinkLaw pipelined_law(int64_t n, double S, double alpha_s, double bytes_a_second);

}  // namespace ashlar::machine
