// The distinct kernel calls of a recipe on its layouts, timed with all ranks computing and nothing
// sent: the table from which simulations take the times of kernels.
//
// Ranks share caches, memory and clock, so a kernel is slower beside others than alone; a table
// of one rank would be too fast.  Operations are muted (comm/measuring.h): the same kernels run
// in the same order, and no rank waits for another.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/bench/machine/foreign_share.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/trace.h"
#include "ashlar/train/loop.h"

namespace ashlar::bench {

// Calls of one kernel that do the same work.
struct KernelRow {
  std::string op, dtype;
  TraceDims dims;
  int64_t flop = 0, bytes = 0;
  int64_t calls = 0;  // of all ranks and steps
  double p10_us = 0, median_us = 0, p90_us = 0;
};

struct KernelTable {
  int num_ranks = 0;
  std::vector<KernelRow> rows;  // longest in total first
  ForeignShare foreign;
};

// Every rank calls it; the table is complete on rank 0.
// layouts: of as many ranks as there are, measured one after the other, all of them `rounds` times,
// so that a slow minute of the machine does not decide about a layout; calls that several make are
// one row.
KernelTable measure_kernels(std::span<const Recipe> layouts, const train::RankResources& resources,
                            int64_t steps, int64_t rounds);

std::string to_text(const KernelTable& table);
std::string to_tsv(const KernelTable& table);  // docs/formats/machine.md

}  // namespace ashlar::bench
