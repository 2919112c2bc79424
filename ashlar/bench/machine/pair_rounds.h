// Which pairs of ranks exchange messages, in which order, and which rank or link their rates show
// to be slow.  Pure functions: nothing is measured here.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ashlar/machine/verdict.h"

namespace ashlar::bench {

struct PairOfRanks {
  int first, second;  // first < second
  bool operator==(const PairOfRanks&) const = default;
};
using PairRound = std::vector<PairOfRanks>;  // no rank is in two of its pairs

// Rounds in which every two ranks meet once: a tournament.
std::vector<PairRound> rounds_of_pairs(int num_ranks);
// About log2 of the number of ranks: every rank meets two others or more, where there are as many.
// With a power of two, ranks meet at distances 1, 2, 4, ...: first within nodes, then across.
std::vector<PairRound> few_rounds_of_pairs(int num_ranks);
// The pairs of a round in turns: those of one turn share no node, so that each has its node's
// memory and NICs alone.  nodes[r]: the number of the node of rank r.
std::vector<PairRound> turns_of(const PairRound& round, std::span<const int> nodes);

struct PairRate {
  PairOfRanks ranks{};
  double gbps = 0;
};

// Judges ranks, in their order, and then links, by the upper quartile of all pairs of their kind:
// within a node, or across nodes.
//
//   rank   slow if even the fastest of its pairs is slow, of two or more
//   link   slow if its pair is slow and neither rank is
//
// A slow pair of ranks that were in no other pair is named as a link: it cannot be told apart.  A
// link's judgement has the rank of its second end, because leaving out one of the two is enough.
// With fewer than 3 pairs of a kind nothing is said about these.
std::vector<machine::Judgement> judge_pairs(std::span<const std::string> hosts,
                                            std::span<const PairRate> pairs);

}  // namespace ashlar::bench
