// Times of operations on CPUs, from the curves of a profile.  The lanes of the thread and MPI
// engines copy and add with the processor, so an operation is processor time of every rank.
//
//   exact       a curve of this engine, operation and number of ranks
//   neighbour   a curve of the operation on another number of ranks (a round costs in proportion to
//               the other ranks, a byte the same), or of another operation that also sums, or also
//               only copies
//
// The time of a curve at the operation's size is split: its floor, the time of small sizes, counts
// for a rank whatever it receives, the rest by the bytes that the rank receives, for ranks may
// receive unlike amounts.  It is cut evenly into the rounds of the operation.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ashlar/machine/profile.h"
#include "ashlar/sim/costs.h"
#include "ashlar/sim/kernel_times.h"

namespace ashlar::sim {

struct OperationTime {
  double fixed_s = 0, s_per_received = 0;
  TimeSource source = TimeSource::kExact;
};

class OperationTimes {
 public:
  // engine: "": the engine with the most curves.
  // Errors   kConfig: the profile has no curve of this engine.
  OperationTimes(const machine::Profile& profile, std::string_view engine);

  const std::string& engine() const { return engine_; }
  bool empty() const { return curves_.empty(); }
  // num_groups: groups of this kind that run at once.
  // Errors   kConfig: no curve is near, with the command that measures one.
  OperationTime of(machine::CollectiveOp op, DType dtype, int64_t num_ranks, int64_t num_groups,
                   double bytes) const;

 private:
  struct Curve {
    const machine::CollectiveCurve* curve;
    std::optional<machine::Fit> fit;
    double floor_us = 0;
    double time_us(double bytes) const;
  };
  const Curve* find(machine::CollectiveOp op, DType dtype, int64_t num_ranks,
                    int64_t num_groups) const;

  const machine::Profile& profile_;
  std::string engine_;
  std::vector<Curve> curves_;
};

// Bytes that a rank receives in an operation on S bytes whose chunks are even.
double even_received(machine::CollectiveOp op, int64_t n, double S);

}  // namespace ashlar::sim
