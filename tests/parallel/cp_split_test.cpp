#include "ashlar/parallel/cp_split.h"

#include <gtest/gtest.h>

#include "ashlar/core/error.h"
#include "ashlar/kernels/sequence.h"

namespace ashlar::parallel {
namespace {

constexpr CpLayout kContiguous = CpLayout::kContiguous, kZigzag = CpLayout::kZigzag;

std::vector<CpSplit> splits() {
  std::vector<CpSplit> all;
  for (const CpLayout layout : {kContiguous, kZigzag})
    for (const int n : {1, 2, 3, 4, 8}) all.push_back({layout, n, 3, 48});
  return all;
}

std::vector<CpStretch> list(const CpStretches& stretches) {
  return {stretches.begin(), stretches.end()};
}

TEST(CpSplit, StretchesOfBothLayouts) {
  const CpSplit contiguous{kContiguous, 3, 1, 24}, zigzag{kZigzag, 3, 1, 24};
  EXPECT_EQ(list(stretches_of(contiguous, 1)), (std::vector<CpStretch>{{8, 16, 0}}));
  EXPECT_EQ(list(stretches_of(zigzag, 0)), (std::vector<CpStretch>{{0, 4, 0}, {20, 24, 4}}));
  EXPECT_EQ(list(stretches_of(zigzag, 1)), (std::vector<CpStretch>{{4, 8, 0}, {16, 20, 4}}));
  EXPECT_EQ(list(stretches_of(zigzag, 2)), (std::vector<CpStretch>{{8, 16, 0}}));  // the middle
}

TEST(CpSplit, EveryTokenHasOnePlace) {
  for (const CpSplit& split : splits()) {
    std::vector<int64_t> seen(size_t(split.num_rows * split.length), 0);
    for (int rank = 0; rank < split.num_ranks; ++rank)
      for (int64_t i = 0; i < split.local_tokens(); ++i) {
        const int64_t whole = whole_row(split, rank, i);
        ++seen[size_t(whole)];
        EXPECT_EQ(row_of(split, whole), (CpRow{rank, i}));
      }
    EXPECT_EQ(seen, std::vector<int64_t>(seen.size(), 1));
  }
}

TEST(CpSplit, ZigzagSharesCausalWorkEvenly) {
  const auto work = [](const CpSplit& split, int rank) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < split.local_tokens(); ++i) pairs += whole_row(split, rank, i) + 1;
    return pairs;
  };
  const CpSplit zigzag{kZigzag, 4, 1, 64}, contiguous{kContiguous, 4, 1, 64};
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(work(zigzag, rank), work(zigzag, 0));
  EXPECT_GT(work(contiguous, 3), 6 * work(contiguous, 0));
}

// Token by token: document and position are those of the whole rows, and no more segments continue
// a document than the bound says.
TEST(CpSplit, SegmentsKeepDocumentAndPosition) {
  std::vector<Segment> local;
  for (const CpSplit& split : splits())
    for (const int64_t step : {1, 5, 6, 7, 24, 48}) {
      std::vector<Segment> whole;
      for (int64_t row = 0; row < split.num_rows; ++row)
        for (int64_t at = 0; at < split.length; at += step)
          whole.push_back({row * split.length + at, std::min(step, split.length - at), 0,
                           int64_t(whole.size())});
      const kernels::Sequence all(whole);
      for (int rank = 0; rank < split.num_ranks; ++rank) {
        take_local_segments(split, rank, whole, local);
        const kernels::Sequence mine(local);
        ASSERT_EQ(mine.num_tokens(), split.local_tokens());
        EXPECT_LE(mine.num_halos(), max_halos(split, rank));
        if (step == split.length) {
          EXPECT_EQ(mine.num_halos(), max_halos(split, rank));
        }
        for (int64_t i = 0; i < mine.num_tokens(); ++i) {
          const auto from = size_t(whole_row(split, rank, i)), to = size_t(i);
          EXPECT_EQ(mine.position_T()[to], all.position_T()[from]);
          EXPECT_EQ(local[size_t(mine.segment_T()[to])].document,
                    whole[size_t(all.segment_T()[from])].document);
        }
      }
    }
}

TEST(CpSplit, SegmentsByHand) {
  std::vector<Segment> local;
  const CpSplit split{kZigzag, 2, 2, 8};  // rank 0: tokens 0 1 and 6 7, rank 1: 2 to 5
  const std::vector<Segment> whole = {{0, 3, 0, 0}, {3, 5, 0, 1}, {8, 6, 0, 2}, {14, 2, 0, 3}};
  take_local_segments(split, 0, whole, local);
  EXPECT_EQ(local, (std::vector<Segment>{{0, 2, 0, 0}, {2, 2, 3, 1}, {4, 2, 0, 2}, {6, 2, 0, 3}}));
  take_local_segments(split, 1, whole, local);
  EXPECT_EQ(local, (std::vector<Segment>{{0, 1, 2, 0}, {1, 3, 0, 1}, {4, 4, 2, 2}}));
}

TEST(CpSplit, UnevenRowsAreRefused) {
  for (const CpSplit& split : splits()) EXPECT_NO_THROW(split.check());
  for (const CpSplit& split : {CpSplit{kContiguous, 5, 1, 24}, CpSplit{kZigzag, 4, 1, 20},
                               CpSplit{kContiguous, 24, 1, 24}}) {
    try {
      split.check();
      ADD_FAILURE() << split.num_ranks << " ranks were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_NE(std::string(error.what()).find("parallel.cp"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace ashlar::parallel
