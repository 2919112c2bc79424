// Times one collective on the ranks of a group.
#pragma once

#include "ashlar/bench/machine/collective_case.h"
#include "ashlar/bench/machine/collectives.h"

namespace ashlar::bench {

// Checks, warms up, and times the operation.  Every rank of its group calls it; all get the times,
// and each its own wrong elements.  kConfig if no repeat is left to count.
CollectiveTime time_case(const CollectiveOptions& options, bool quick, CollectiveCase& c);

// The times of repeats from those of the ranks: by_rank[r * n + i] of rank r and repeat i of n.
std::vector<double> times_of_ranks(const std::vector<double>& by_rank, size_t num_ranks,
                                   OfRanks rule);

}  // namespace ashlar::bench
