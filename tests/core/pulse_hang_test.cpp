#include "ashlar/core/pulse_hang.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace ashlar {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// The page of a rank that belongs to the groups dp (id 1, index 0) and tp (id 2, index 1), and has
// ended `ended[g]` operations of each.
PulsePage rank_page(int rank, std::initializer_list<int64_t> ended = {10, 10}) {
  PulsePage page;
  page.rank = rank;
  page.num_ranks = 4;
  page.place = PulsePlace::kBackward;
  page.block = 12;
  page.changed_ns = 5 * kSecond;
  const char* names[] = {"dp", "tp"};
  for (const int64_t posted : ended)
    page.groups.push_back({page.groups.size() + 1, names[page.groups.size()], 2, posted});
  return page;
}

// Queues the group's next operation, without an end.
PulsePage& queue(PulsePage& page, int group, const char* op = "all_reduce", int64_t bytes = 64,
                 const char* label = "gradients") {
  const int64_t number = page.groups[size_t(group)].posted++;
  page.operations.push_back({.order = int64_t(page.operations.size()),
                             .group = group,
                             .lane = group,
                             .number = number,
                             .bytes = bytes,
                             .op = op,
                             .label = label,
                             .queued_ns = 5 * kSecond});
  return page;
}

// Waits for the operation queued last.
PulsePage& wait_here(PulsePage& page) {
  page.waits_for = page.operations.back().order;
  return page;
}

using Kind = PulseHang::Kind;
using Pages = std::map<int, PulsePage>;
using Ranks = std::vector<int>;

TEST(PulseHang, NamesTheRankThatDidNotCome) {
  Pages pages;
  for (int rank = 0; rank < 4; ++rank) {
    PulsePage page = rank_page(rank);
    if (rank != 2) wait_here(queue(page, 0));
    pages[rank] = page;
  }
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kMissing);
  EXPECT_EQ(hang.ranks, Ranks({2}));
  EXPECT_EQ(hang.waiting, Ranks({0, 1, 3}));
  EXPECT_EQ(describe(hang, pages, 17 * kSecond),
            "rank 2 did not come to all_reduce 'gradients' (number 10 of dp), silent 12 s in "
            "backward of block 12; ranks 0, 1, 3 wait");
}

// A rank may run ahead by any number of operations that it does not wait for.
TEST(PulseHang, ARankThatIsAheadHasCome) {
  Pages pages{{0, rank_page(0)}, {1, rank_page(1)}};
  wait_here(queue(pages[0], 0));
  queue(queue(queue(pages[1], 0), 0), 0);
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kAllArrived);
  EXPECT_EQ(describe(hang, pages, 0),
            "all ranks have come to all_reduce 'gradients' (number 10 of dp), and it does not end");
}

// 0 waits for 1 in dp, 1 for 2 in tp, and 2 is at work: 1 is held up, not late.
TEST(PulseHang, ARankThatWaitsIsNoCause) {
  Pages pages{{0, rank_page(0)}, {1, rank_page(1)}, {2, rank_page(2, {10, 10})}};
  pages[2].groups[0].id = 99;  // another dp
  pages[0].groups[1].id = 98;  // another tp
  wait_here(queue(pages[0], 0));
  wait_here(queue(pages[1], 1));
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kMissing);
  EXPECT_EQ(hang.ranks, Ranks({2}));
  EXPECT_EQ(hang.group, "tp");
  EXPECT_EQ(hang.waiting, Ranks({1}));
}

// Both wait in dp for its second operation; the first one, in the same lane, lacks rank 2.
TEST(PulseHang, AnOperationWaitsForThoseBeforeItInItsLane) {
  Pages pages;
  for (const int rank : {0, 1, 2}) pages[rank] = rank_page(rank);
  for (const int rank : {0, 1}) wait_here(queue(queue(pages[rank], 0), 0));
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.ranks, Ranks({2}));
  EXPECT_EQ(hang.operation.number, 10);
}

TEST(PulseHang, NamesTheRankWithAnotherOperation) {
  Pages pages;
  for (int rank = 0; rank < 3; ++rank) pages[rank] = rank_page(rank);
  for (const int rank : {0, 2}) wait_here(queue(pages[rank], 0));
  const auto deviating = [&](const char* op, int64_t bytes) {
    Pages with = pages;
    wait_here(queue(with[1], 0, op, bytes));
    return find_hang(with);
  };
  EXPECT_EQ(deviating("all_reduce", 64).kind, Kind::kAllArrived);
  EXPECT_EQ(deviating("all_reduce", 32).kind, Kind::kMismatch);
  EXPECT_EQ(deviating("all_reduce", 32).ranks, Ranks({1}));
  EXPECT_EQ(deviating("barrier", 64).ranks, Ranks({1}));
}

TEST(PulseHang, UnevenOperationsMayDifferInSize) {
  Pages pages{{0, rank_page(0)}, {1, rank_page(1)}};
  wait_here(queue(pages[0], 0, "all_to_all", 64));
  wait_here(queue(pages[1], 0, "all_to_all", 32));
  EXPECT_EQ(find_hang(pages).kind, Kind::kAllArrived);
}

TEST(PulseHang, RanksThatWaitForEachOtherDisagree) {
  Pages pages{{0, rank_page(0)}, {1, rank_page(1)}};
  wait_here(queue(pages[0], 0));
  wait_here(queue(pages[1], 1));
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kMismatch);
  EXPECT_EQ(hang.ranks, Ranks({0, 1}));
}

// tp = {0, 1}, {2, 3} and dp = {0, 2}, {1, 3}: all are in tp of 0 and 1, for which the others wait.
TEST(PulseHang, AStalledOperationOfAMeshIsNoMismatch) {
  Pages pages;
  for (const int rank : {0, 1, 2, 3}) {
    pages[rank] = rank_page(rank);
    pages[rank].groups[0].id = rank % 2 == 0 ? 10 : 11;
    pages[rank].groups[1].id = rank < 2 ? 20 : 21;
    wait_here(queue(pages[rank], rank < 2 ? 1 : 0));
  }
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kAllArrived);
  EXPECT_EQ(hang.group, "tp");
  EXPECT_EQ(hang.waiting, Ranks({0, 1}));
}

TEST(PulseHang, ARankWithoutAPageMayBeTheCause) {
  Pages pages;
  for (const int rank : {0, 2}) {
    pages[rank] = rank_page(rank);
    pages[rank].groups[0].size = 3;
    wait_here(queue(pages[rank], 0));
  }
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kMissing);
  EXPECT_TRUE(hang.ranks.empty());
  EXPECT_EQ(describe(hang, pages, 0),
            "ranks 0, 2 wait for all_reduce 'gradients' (number 10 of dp); all ranks with a page "
            "have come to it, and others have none");
}

TEST(PulseHang, OperationsWithoutNumbersLackThoseWhoDoNotWait) {
  Pages pages;
  for (int rank = 0; rank < 3; ++rank) pages[rank] = rank_page(rank);
  for (const int rank : {0, 2}) {
    wait_here(queue(pages[rank], 1, "send_receive"));
    pages[rank].operations.back().number = -1;
  }
  EXPECT_EQ(find_hang(pages).ranks, Ranks({1}));
  wait_here(queue(pages[1], 0));  // it has no part in the exchange, and went on
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kAllArrived);
  EXPECT_EQ(hang.group, "tp");
}

TEST(PulseHang, WithoutAnyWaitTheRanksAreAtWork) {
  const Pages pages{{0, rank_page(0)}, {3, rank_page(3)}};
  const PulseHang hang = find_hang(pages);
  EXPECT_EQ(hang.kind, Kind::kWorking);
  EXPECT_EQ(hang.ranks, Ranks({0, 3}));
  EXPECT_EQ(describe(hang, pages, 8 * kSecond),
            "ranks 0, 3: silent 3 s in backward of block 12; no rank waits");
}

TEST(PulseHang, FoldsNumbersOfRanks) {
  EXPECT_EQ(format_ranks(Ranks({7})), "rank 7");
  EXPECT_EQ(format_ranks(Ranks({1, 2})), "ranks 1, 2");
  EXPECT_EQ(format_ranks(Ranks({0, 1, 2, 3, 5, 8, 9, 10})), "ranks 0-3, 5, 8-10");
}

}  // namespace
}  // namespace ashlar
