// Times of messages between two ranks, there and back, with data that are checked.
#pragma once

#include <string>
#include <vector>

#include "ashlar/bench/machine/pair_rounds.h"
#include "ashlar/bench/machine/part.h"

namespace ashlar::bench {

struct PairTime {
  PairOfRanks ranks{};
  int64_t bytes = 0;
  std::vector<double> one_way_us;  // of each repeat, half of a round trip
  int64_t num_wrong = 0;           // elements
  int64_t row = -1;                // its number (Rig)
};

// The times of pairs that run at once; every rank calls it, and all get all times.  bytes: a
// multiple of 4.
std::vector<PairTime> time_pairs(const Rig& rig, const PairRound& pairs, int64_t bytes);

double gigabytes_per_s(const PairTime& time);  // of the median
double gigabytes_per_s(const PairTime& time, double us);
std::string pair_json(const PairTime& time);       // a row
machine::Measured fault_of(const PairTime& time);  // of one with wrong elements

}  // namespace ashlar::bench
