// Plans of loads by many ranks, of sizes that no test could read.
#include "ashlar/checkpoint/load/load_plan.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/checkpoint/random_boxes.h"

namespace ashlar::checkpoint {
namespace {

using Wants = std::vector<std::vector<ChunkRange>>;

Index files_of(std::initializer_list<int64_t> sizes) {
  Index index;
  for (const int64_t size : sizes) {
    index.files.emplace_back();
    index.files.back().size_bytes = size;
  }
  return index;
}

// All that load_plan.h promises.
void expect_plan(const Index& index, const Wants& wants) {
  const ChunkNumbers chunks(index);
  const LoadPlan plan = make_load_plan(chunks, wants);
  std::map<int64_t, std::vector<int>> wanted;  // ranks by chunk
  for (size_t rank = 0; rank < wants.size(); ++rank)
    for (const ChunkRange& range : wants[rank])
      for (int64_t c = range.begin; c < range.end; ++c) wanted[c].push_back(int(rank));
  int64_t total = 0, before = 0, lot_chunks = 0;
  for (const auto& [chunk, ranks] : wanted) total += chunks.bytes(chunk);
  auto next = wanted.begin();
  for (size_t i = 0; i < plan.lots.size(); ++i) {
    const Lot& lot = plan.lots[i];
    EXPECT_LE(lot.bytes, kMaxLotBytes);
    const bool last_of_reader = i + 1 == plan.lots.size() || plan.lots[i + 1].reader != lot.reader;
    EXPECT_TRUE(last_of_reader || lot.bytes >= kLotBytes) << lot.bytes;
    int64_t bytes = 0;
    for (const Lot::Part& part : lot.parts) {
      int64_t part_bytes = 0;
      for (int64_t c = part.chunks.begin; c < part.chunks.end; ++c, ++next, ++lot_chunks) {
        ASSERT_EQ(next->first, c);
        ASSERT_EQ(lot.reader, int(double(before) / double(total) * double(wants.size())));
        std::vector<int> receivers = next->second;
        std::erase(receivers, lot.reader);
        ASSERT_EQ(part.receivers, receivers);
        before += chunks.bytes(c);
        part_bytes += padded(chunks.bytes(c));
      }
      EXPECT_EQ(part.bytes, part_bytes);
      bytes += part_bytes;
    }
    EXPECT_EQ(lot.bytes, bytes);
  }
  EXPECT_EQ(lot_chunks, int64_t(wanted.size()));

  std::vector<size_t> seen;
  std::vector<int64_t> last(wants.size(), -1);
  for (const auto& round : plan.rounds) {
    std::map<int, int64_t> received;
    std::map<int, int> reads;
    for (const size_t number : round) {
      const Lot& lot = plan.lots[number];
      EXPECT_EQ(++reads[lot.reader], 1);
      EXPECT_LT(last[size_t(lot.reader)], int64_t(number));
      last[size_t(lot.reader)] = int64_t(number);
      for (const Lot::Part& part : lot.parts)
        for (const int rank : part.receivers) received[rank] += part.bytes;
      seen.push_back(number);
    }
    for (const auto& [rank, bytes] : received) EXPECT_LE(bytes, kMaxLotBytes);
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), plan.lots.size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
}

TEST(LoadPlan, EveryRankWantsAll) {
  const Index index = files_of({int64_t(20) << 30, 5, int64_t(3) << 30});
  const int64_t end = ChunkNumbers(index).first(3);
  expect_plan(index, Wants(64, {{0, end}}));
}

TEST(LoadPlan, WhoeverWantsNothingReadsTooAndReceivesNothing) {
  const Index index = files_of({int64_t(1) << 30, int64_t(1) << 30});
  Wants wants(5);
  wants[3] = {{0, 512}};
  expect_plan(index, wants);
  EXPECT_EQ(make_load_plan(ChunkNumbers(index), wants).lots.front().parts[0].receivers,
            std::vector<int>{3});
}

TEST(LoadPlan, RanksThatReadAloneDoSoAtOnce) {
  const Index index = files_of({int64_t(1) << 28, int64_t(1) << 28, int64_t(1) << 28});
  const LoadPlan plan =
      make_load_plan(ChunkNumbers(index), Wants{{{0, 64}}, {{64, 128}}, {{128, 192}}});
  EXPECT_EQ(plan.rounds.size(), 32u);  // of 8 MiB for each
  for (const auto& round : plan.rounds) EXPECT_EQ(round.size(), 3u);
}

TEST(LoadPlan, NothingIsWanted) {
  const LoadPlan plan = make_load_plan(ChunkNumbers(files_of({100})), Wants(3));
  EXPECT_TRUE(plan.lots.empty());
  EXPECT_TRUE(plan.rounds.empty());
}

TEST(LoadPlan, AnyWants) {
  Draw draw(5, "load plan");
  for (int round = 0; round < 200; ++round) {
    Index index;
    for (int64_t i = draw.below(40); i >= 0; --i) {
      index.files.emplace_back();
      index.files.back().size_bytes = draw.below(draw.below(2) ? 100 : 100 << 20);
    }
    const int64_t end = ChunkNumbers(index).first(index.files.size());
    Wants wants(size_t(1 + draw.below(9)));
    for (std::vector<ChunkRange>& ranges : wants)
      for (int64_t at = draw.below(end + 1); at < end;) {
        const int64_t begin = at;
        at = std::min(end, at + 1 + draw.below(30));
        ranges.push_back({begin, at});
        at += 1 + draw.below(30);
      }
    expect_plan(index, wants);
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
