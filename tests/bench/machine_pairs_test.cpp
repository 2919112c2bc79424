// Rounds of pairs, and the rank or link that their rates show to be slow.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <set>

#include "ashlar/bench/machine/pair_rounds.h"

namespace ashlar::bench {
namespace {

using machine::Judgement;
using machine::Verdict;

std::vector<std::string> hosts_of(int num_ranks, int on_node) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < num_ranks; ++rank)
    hosts.push_back(fmt::format("n{:02}", rank / on_node));
  return hosts;
}

// No rank is twice in a round; how often each meets another.
void expect_disjoint(const std::vector<PairRound>& rounds, int num_ranks) {
  for (const PairRound& round : rounds) {
    std::set<int> seen;
    for (const PairOfRanks& pair : round) {
      EXPECT_LT(pair.first, pair.second);
      EXPECT_GE(pair.first, 0);
      EXPECT_LT(pair.second, num_ranks);
      EXPECT_TRUE(seen.insert(pair.first).second) << num_ranks;
      EXPECT_TRUE(seen.insert(pair.second).second) << num_ranks;
    }
  }
}

TEST(Pairs, ATournamentLetsEveryTwoRanksMeetOnce) {
  for (int num_ranks = 1; num_ranks <= 67; ++num_ranks) {
    const std::vector<PairRound> rounds = rounds_of_pairs(num_ranks);
    EXPECT_EQ(int(rounds.size()), num_ranks + num_ranks % 2 - 1);
    expect_disjoint(rounds, num_ranks);
    std::set<std::pair<int, int>> met;
    for (const PairRound& round : rounds) {
      EXPECT_EQ(int(round.size()), num_ranks / 2) << num_ranks;
      for (const PairOfRanks& pair : round) met.insert({pair.first, pair.second});
    }
    EXPECT_EQ(int(met.size()), num_ranks * (num_ranks - 1) / 2) << num_ranks;
  }
}

TEST(Pairs, AFewRoundsLetEveryRankMeetSeveral) {
  for (int num_ranks = 2; num_ranks <= 67; ++num_ranks) {
    const std::vector<PairRound> rounds = few_rounds_of_pairs(num_ranks);
    expect_disjoint(rounds, num_ranks);
    EXPECT_LE(int(rounds.size()), int(std::bit_width(unsigned(num_ranks))) + 1);
    std::vector<std::set<int>> met(static_cast<size_t>(num_ranks));
    for (const PairRound& round : rounds)
      for (const PairOfRanks& pair : round) {
        EXPECT_TRUE(met[size_t(pair.first)].insert(pair.second).second) << "twice";
        met[size_t(pair.second)].insert(pair.first);
      }
    for (const auto& others : met)
      EXPECT_GE(int(others.size()), std::min(num_ranks - 1, 2)) << num_ranks;
  }
}

TEST(Pairs, ThoseOfATurnShareNoNode) {
  const std::vector<int> nodes = {0, 0, 1, 1, 2, 2, 3, 3};
  for (const PairRound& round : rounds_of_pairs(8)) {
    size_t num_pairs = 0;
    for (const PairRound& turn : turns_of(round, nodes)) {
      num_pairs += turn.size();
      std::set<int> seen;
      for (const auto& [a, b] : turn) {
        const std::set<int> its{nodes[size_t(a)], nodes[size_t(b)]};
        for (const int node : its) EXPECT_TRUE(seen.insert(node).second);
      }
    }
    EXPECT_EQ(num_pairs, round.size());
  }
  EXPECT_EQ(turns_of(few_rounds_of_pairs(4)[0], std::vector<int>{0, 0, 0, 0}).size(), 2u);
}

// Rates of a machine of which one rank, or the pair of one link, is slow.
struct Machine {
  int num_ranks, on_node;
  double noise;
  unsigned seed;
  int slow_rank = -1;
  PairOfRanks slow_link{-1, -1};
  double slow_share = 0.4;
};

std::vector<Judgement> judged(const Machine& m) {
  std::mt19937 generator(m.seed);
  std::normal_distribution<double> normal(0, m.noise);
  const std::vector<std::string> hosts = hosts_of(m.num_ranks, m.on_node);
  std::vector<PairRate> rates;
  for (const PairRound& round : few_rounds_of_pairs(m.num_ranks))
    for (const PairOfRanks& pair : round) {
      const bool across = hosts[size_t(pair.first)] != hosts[size_t(pair.second)];
      const bool slow =
          pair.first == m.slow_rank || pair.second == m.slow_rank || pair == m.slow_link;
      rates.push_back(
          {pair, (across ? 12 : 40) * (1 + normal(generator)) * (slow ? m.slow_share : 1)});
    }
  std::vector<Judgement> bad;
  for (Judgement& j : judge_pairs(hosts, rates))
    if (j.verdict == Verdict::kBad) bad.push_back(std::move(j));
  return bad;
}

TEST(Pairs, W3NamesOneSlowRank) {
  for (int num_ranks = 3; num_ranks <= 64; ++num_ranks)
    for (int slow = 0; slow < num_ranks; slow += 1 + num_ranks / 9) {
      const auto bad = judged({num_ranks, 64, 0.05, unsigned(slow), slow});
      ASSERT_EQ(bad.size(), 1u) << slow << " of " << num_ranks;
      EXPECT_EQ(bad[0].rank, slow);
      EXPECT_EQ(bad[0].name, fmt::format("messages of rank {} on n00", slow));
      EXPECT_NE(bad[0].hint.find("slower than the others"), std::string::npos) << bad[0].hint;
      EXPECT_NEAR(*bad[0].ratio, 0.4, 0.1);
    }
}

TEST(Pairs, W3NamesOneSlowLink) {
  for (int num_ranks = 3; num_ranks <= 64; ++num_ranks)
    for (const PairRound& round : few_rounds_of_pairs(num_ranks)) {
      Machine m{num_ranks, 64, 0.05, unsigned(num_ranks)};
      m.slow_link = round[round.size() / 2];
      const auto bad = judged(m);
      ASSERT_EQ(bad.size(), 1u) << num_ranks;
      EXPECT_EQ(bad[0].name, fmt::format("messages between rank {} on n00 and rank {} on n00",
                                         m.slow_link.first, m.slow_link.second));
      EXPECT_EQ(bad[0].rank, m.slow_link.second);
      EXPECT_NE(bad[0].hint.find("the link between them is slow"), std::string::npos);
    }
}

TEST(Pairs, W3NamesNobodyAmongEquals) {
  for (int num_ranks = 2; num_ranks <= 64; ++num_ranks)
    for (unsigned seed = 0; seed < 20; ++seed)
      for (const int on_node : {4, 64}) {
        const auto bad = judged({num_ranks, on_node, 0.05, seed});
        EXPECT_TRUE(bad.empty()) << bad[0].name << " of " << num_ranks << " seed " << seed;
      }
}

// Links across nodes are three times slower than those within, and no fault.
TEST(Pairs, W3TellsNodesApart) {
  for (int slow = 0; slow < 32; ++slow) {
    const auto bad = judged({32, 8, 0.03, 1, slow});
    ASSERT_EQ(bad.size(), 1u);
    EXPECT_EQ(bad[0].name, fmt::format("messages of rank {} on n{:02}", slow, slow / 8));
  }
}

TEST(Pairs, TwoRanksCannotBeToldApart) {
  const std::vector<PairRate> one = {{{0, 1}, 0.001}};
  EXPECT_TRUE(judge_pairs(hosts_of(2, 2), one).empty());
}

}  // namespace
}  // namespace ashlar::bench
