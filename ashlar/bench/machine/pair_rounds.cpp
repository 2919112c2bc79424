// How it works.  A message is as slow as the slowest of its two ranks and the link between them,
// so that one rate says nothing about which it was.  But a rank that meets several others is as
// fast as its fastest pair shows.  So a few rounds of pairs, log2 n of them, tell a slow rank from
// a slow link, where all pairs would be n - 1 rounds.
//
// The reference is the upper quartile rather than the median: with 3 to 5 ranks a single slow one
// is in half of the pairs or more.  From 9 pairs on, rates of a noisy machine must also differ by
// more than 4 standard deviations, as the upper half of the pairs shows: slow ones are not in it.
#include "ashlar/bench/machine/pair_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace ashlar::bench {
namespace {

// The reference for the pairs of one kind.
struct PairKind {
  double gbps = 0;
  double deviation = 0;  // of the ratios to gbps
  size_t num_pairs = 0;
  bool is_slow(double ratio) const {
    return ratio < 0.70 && 1 - ratio > 4 * deviation;  // as machine::Verdict::kBad
  }
};

std::optional<PairKind> kind_of_rates(std::vector<double> gbps) {
  constexpr size_t kLeast = 3, kLeastForDeviation = 9;
  constexpr double kQuartileOfNormal = 0.6745;
  if (gbps.size() < kLeast) return std::nullopt;
  std::sort(gbps.begin(), gbps.end());
  const double upper = gbps[(3 * gbps.size() + 3) / 4 - 1], median = gbps[gbps.size() / 2];
  PairKind kind{upper, 0, gbps.size()};
  if (gbps.size() >= kLeastForDeviation) kind.deviation = (1 - median / upper) / kQuartileOfNormal;
  return kind;
}

// The pairs of one rank that can be judged.
struct RankPairs {
  int num_pairs = 0;
  double best_ratio = 0, best_gbps = 0;
  const PairKind* kind = nullptr;  // of the best
  bool is_slow() const { return num_pairs >= 2 && kind->is_slow(best_ratio); }
};

machine::Judgement judgement_of(std::string name, double gbps, const PairKind& kind, int rank,
                                std::string cause) {
  machine::Measured m;
  m.name = std::move(name);
  m.value = gbps;
  m.unit = "GB/s";
  m.rank = rank;
  m.cause = std::move(cause);
  return machine::judge(
      m, machine::Expected{kind.gbps,
                           fmt::format("the upper quartile of {} pairs of ranks", kind.num_pairs)});
}

}  // namespace

std::vector<PairRound> rounds_of_pairs(int num_ranks) {
  std::vector<PairRound> rounds;
  const int seats = num_ranks + num_ranks % 2;  // with an odd number, one rests in each round
  for (int round = 0; round + 1 < seats; ++round) {
    // One rank stays, and the others rotate around it.
    const auto rank_at = [&](int seat) {
      return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1);
    };
    PairRound& pairs = rounds.emplace_back();
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int a = rank_at(seat), b = rank_at(seats - 1 - seat);
      if (std::max(a, b) < num_ranks) pairs.push_back({std::min(a, b), std::max(a, b)});
    }
  }
  return rounds;
}

std::vector<PairRound> few_rounds_of_pairs(int num_ranks) {
  std::vector<PairRound> all;
  if (std::has_single_bit(unsigned(num_ranks))) {
    for (int distance = 1; distance < num_ranks; distance *= 2) {
      PairRound& pairs = all.emplace_back();
      for (int rank = 0; rank < num_ranks; ++rank)
        if ((rank & distance) == 0) pairs.push_back({rank, rank + distance});
    }
    return all;
  }
  all = rounds_of_pairs(num_ranks);
  // A rank that rests in a round meets one fewer.
  const size_t wanted = size_t(std::bit_width(unsigned(num_ranks))) + size_t(num_ranks % 2);
  if (wanted < all.size()) all.resize(wanted);
  return all;
}

std::vector<PairRound> turns_of(const PairRound& round, std::span<const int> nodes) {
  std::vector<PairRound> turns;
  for (const PairOfRanks& pair : round) {
    const auto shares_a_node = [&](const PairOfRanks& other) {
      for (const int a : {pair.first, pair.second})
        for (const int b : {other.first, other.second})
          if (nodes[size_t(a)] == nodes[size_t(b)]) return true;
      return false;
    };
    const auto turn = std::find_if(turns.begin(), turns.end(), [&](const PairRound& pairs) {
      return std::none_of(pairs.begin(), pairs.end(), shares_a_node);
    });
    if (turn == turns.end())
      turns.push_back({pair});
    else
      turn->push_back(pair);
  }
  return turns;
}

std::vector<machine::Judgement> judge_pairs(std::span<const std::string> hosts,
                                            std::span<const PairRate> pairs) {
  const auto is_across = [&](const PairOfRanks& pair) {
    return hosts[size_t(pair.first)] != hosts[size_t(pair.second)];
  };
  std::optional<PairKind> kinds[2];
  for (const bool across : {false, true}) {
    std::vector<double> gbps;
    for (const PairRate& pair : pairs)
      if (is_across(pair.ranks) == across) gbps.push_back(pair.gbps);
    kinds[across] = kind_of_rates(std::move(gbps));
  }
  std::vector<RankPairs> ranks(hosts.size());
  for (const PairRate& pair : pairs) {
    const auto& kind = kinds[is_across(pair.ranks)];
    if (!kind) continue;
    for (const int rank : {pair.ranks.first, pair.ranks.second}) {
      RankPairs& its = ranks[size_t(rank)];
      ++its.num_pairs;
      const double ratio = pair.gbps / kind->gbps;
      if (its.kind && ratio <= its.best_ratio) continue;
      its.best_ratio = ratio;
      its.best_gbps = pair.gbps;
      its.kind = &*kind;
    }
  }
  std::vector<machine::Judgement> result;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const RankPairs& its = ranks[rank];
    if (its.num_pairs < 2 || (its.kind->is_slow(its.best_ratio) != (its.best_ratio < 0.70)))
      continue;
    result.push_back(judgement_of(
        fmt::format("messages of rank {} on {}", rank, hosts[rank]), its.best_gbps, *its.kind,
        int(rank),
        fmt::format(
            "rank {} on {} is slower than the others, with each of the {} ranks that it met", rank,
            hosts[rank], its.num_pairs)));
  }
  for (const PairRate& pair : pairs) {
    const auto& kind = kinds[is_across(pair.ranks)];
    const auto [a, b] = pair.ranks;
    if (!kind || !kind->is_slow(pair.gbps / kind->gbps) || ranks[size_t(a)].is_slow() ||
        ranks[size_t(b)].is_slow())
      continue;
    const bool both_met_others = ranks[size_t(a)].num_pairs > 1 && ranks[size_t(b)].num_pairs > 1;
    result.push_back(judgement_of(
        fmt::format("messages between rank {} on {} and rank {} on {}", a, hosts[size_t(a)], b,
                    hosts[size_t(b)]),
        pair.gbps, *kind, b,
        both_met_others ? "the link between them is slow: both are fast with other ranks"
                        : "one of them or the link between them is slow"));
  }
  return result;
}

}  // namespace ashlar::bench
