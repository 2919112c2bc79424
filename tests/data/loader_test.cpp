#include "ashlar/data/loader.h"

#include <gtest/gtest.h>

#include <set>

#include "ashlar/data/blend.h"
#include "tests/data/loader_case.h"

namespace ashlar::data {
namespace {

TEST_F(LoaderTest, TargetsAreTheNextTokens) {
  Loader loader = one(options_of(4, 4));
  Batch batch;
  loader.next(batch);
  ASSERT_EQ(batch.ids_BT.size(), 32u);
  EXPECT_EQ(batch.num_targets, 32);
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(batch.targets_BT[i], batch.ids_BT[i] + 1);
    EXPECT_EQ(batch.ids_BT[i], batch.ids_BT[i / 8 * 8] + static_cast<int32_t>(i % 8));
  }
}

TEST_F(LoaderTest, AnEpochHoldsEverySampleOnceAndEpochsDiffer) {
  Loader loader = one(options_of(1, 1));
  const int64_t size = loader.samples_per_epoch();
  ASSERT_EQ(size, (loader.sources()[0].dataset->index().num_tokens() - 1) / 8);
  std::vector<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t>& firsts = orders.emplace_back();
    for (const Row& row : take(loader, size)) firsts.push_back(row.ids[0]);
    std::vector<int32_t> ordered = firsts;
    std::sort(ordered.begin(), ordered.end());
    for (int64_t j = 0; j < size; ++j)
      EXPECT_EQ(ordered[static_cast<size_t>(j)], static_cast<int32_t>(8 * j));
    EXPECT_NE(firsts, ordered) << "shuffled";
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(LoaderTest, SeedsGiveDifferentOrdersAndNoShuffleGivesNone) {
  LoaderOptions options = options_of(1, 1);
  Loader first = one(options), again = one(options);
  options.seed = 2;
  Loader second = one(options);
  options.shuffle = false;
  Loader plain = one(options);
  const auto rows = take(first, 20);
  EXPECT_EQ(rows, take(again, 20));
  EXPECT_NE(rows, take(second, 20));
  const auto in_order = take(plain, 20);
  for (size_t j = 0; j < in_order.size(); ++j)
    EXPECT_EQ(in_order[j].ids[0], static_cast<int32_t>(8 * j));
}

TEST_F(LoaderTest, BlendsByWeight) {
  Loader loader = blend(options_of(2, 8));
  const auto rows = take(loader, 80);
  const std::vector<double> weights{0.75, 0.25};
  std::vector<int64_t> counts(2, 0);
  for (const Row& row : sorted(rows)) {
    const int64_t expected = blend_choice(weights, row.sample, counts);
    EXPECT_EQ(row.dataset, expected);
    EXPECT_EQ(row.ids[0] >= 500'000, expected == 1);
    ++counts[static_cast<size_t>(expected)];
  }
  EXPECT_EQ(loader.state().counts, counts);
  EXPECT_EQ(counts, (std::vector<int64_t>{60, 20}));
}

TEST_F(LoaderTest, NeitherMicroBatchNorStreamsNorRanksChangeGlobalBatches) {
  const auto expected = [&] {
    Loader loader = blend(options_of(12, 12));
    return take(loader, 60);
  }();
  for (const int64_t micro : {1, 2, 3, 4, 6}) {
    Loader loader = blend(options_of(micro, 12));
    EXPECT_EQ(take(loader, 60), expected) << "micro batch " << micro;
  }
  for (const int64_t streams : {1, 2, 3, 4, 6}) {
    Loader loader = blend(options_of(12, 12, streams));
    for (size_t step = 0; step < 5; ++step) {
      const auto begin = expected.begin() + static_cast<int64_t>(step) * 12;
      EXPECT_EQ(sorted(take(loader, 12)), sorted({begin, begin + 12})) << streams << " streams";
    }
  }
  for (const int64_t ranks : {2, 3, 4}) {
    std::vector<Loader> loaders;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions options = options_of(1, 12, 12);
      options.first_stream = rank * 12 / ranks;
      options.local_streams = 12 / ranks;
      loaders.push_back(blend(options));
    }
    std::vector<Row> rows;
    for (int step = 0; step < 5; ++step)
      for (Loader& loader : loaders)
        for (Row& row : take(loader, 12 / ranks)) rows.push_back(std::move(row));
    EXPECT_EQ(rows, expected) << ranks << " ranks";
    for (const Loader& loader : loaders) EXPECT_EQ(loader.state(), loaders[0].state());
  }
}

// However many ranks take them, and how many at a time; rows that are left over are empty.
TEST_F(LoaderTest, AnEvaluationTakesEachSampleOnce) {
  const auto rows_on = [&](int64_t ranks, int64_t micro, int64_t num_samples) {
    std::vector<Row> rows;
    int64_t empty = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions options = options_of(micro, micro * ranks, ranks);
      options.first_stream = rank, options.local_streams = 1;
      options.shuffle = false;
      options.num_samples = num_samples;
      options.pad_id = 777;
      Loader loader = blend(options);
      const int64_t batches = loader.num_batches();
      EXPECT_EQ(batches, (std::min<int64_t>(num_samples, 70) + micro * ranks - 1) / micro / ranks);
      for (Row& row : take(loader, batches * micro)) {
        if (row.dataset >= 0) {
          rows.push_back(std::move(row));
          continue;
        }
        ++empty;
        EXPECT_EQ(row.ids, std::vector<int32_t>(8, 777));
        EXPECT_EQ(row.targets, std::vector<int32_t>(8, -1));
      }
      EXPECT_LT(empty, micro * ranks);
    }
    return sorted(rows);
  };
  const Loader whole = blend(options_of(1, 1));
  ASSERT_EQ(whole.samples_per_epoch(), 70);  // 60 of one, 10 of the other, which counts a quarter
  for (const int64_t num_samples : {1, 13, 70, 1000}) {
    const auto expected = rows_on(1, 1, num_samples);
    EXPECT_EQ(std::ssize(expected), std::min<int64_t>(num_samples, 70));
    std::set<std::vector<int32_t>> different;
    for (const Row& row : expected) different.insert(row.ids);
    EXPECT_EQ(different.size(), expected.size());
    for (const int64_t ranks : {1, 2, 3, 7})
      for (const int64_t micro : {1, 4, 5})
        EXPECT_EQ(rows_on(ranks, micro, num_samples), expected)
            << num_samples << " samples, " << ranks << " ranks, micro-batches of " << micro;
  }
}

TEST_F(LoaderTest, StreamsTakeEveryLthSample) {
  Loader loader = blend(options_of(1, 12, 4));
  const auto rows = take(loader, 24);
  for (int64_t p = 0; p < 24; ++p) {
    const int64_t step = p / 12, stream = p % 12 / 3, k = p % 3;
    EXPECT_EQ(rows[static_cast<size_t>(p)].sample, stream + 4 * (step * 3 + k));
  }
}

TEST_F(LoaderTest, ResumingAnywhereEqualsRunningOn) {
  for (const Packing packing : {Packing::kConcat, Packing::kBestFit}) {
    Loader straight = blend(options_of(2, 6, 3), packing);
    std::vector<LoaderState> states{straight.state()};
    std::vector<Row> rows;
    for (Batch batch; rows.size() < 120;) {
      straight.next(batch);
      states.push_back(batch.state);
      EXPECT_EQ(batch.state, straight.state());
      for (Row& row : rows_of(batch)) rows.push_back(std::move(row));
    }
    for (size_t at = 0; at + 12 < states.size(); ++at) {
      Loader resumed = blend(options_of(2, 6, 3), packing);
      EXPECT_TRUE(resumed.restore(loader_state_from(to_arrays(states[at]))));
      const auto begin = rows.begin() + static_cast<int64_t>(at) * 2;
      EXPECT_EQ(take(resumed, 24), std::vector<Row>(begin, begin + 24)) << "from batch " << at;
    }
  }
}

TEST_F(LoaderTest, BatchesMayGrowBetweenSteps) {
  Loader small = blend(options_of(2, 4));
  auto rows = take(small, 12);
  Loader large = blend(options_of(4, 8));
  large.restore(small.state());
  for (Row& row : take(large, 16)) rows.push_back(std::move(row));
  std::set<int64_t> samples;
  for (const Row& row : rows) samples.insert(row.sample);
  EXPECT_EQ(samples.size(), 28u);
  EXPECT_EQ(*samples.rbegin(), 27) << "nothing lost, nothing twice";
}

TEST_F(LoaderTest, RestoreRefusesWhatDoesNotBelong) {
  Loader loader = blend(options_of(2, 4));
  Batch batch;
  loader.next(batch);
  ASSERT_EQ(batch.state.position, 2);
  LoaderOptions options = options_of(2, 8);
  Loader larger = blend(options);
  message_of(ErrorKind::kConfig, [&] { larger.restore(batch.state); });
  loader.next(batch);
  ASSERT_EQ(batch.state.position, 0);
  options.seed = 9;
  Loader seeded = blend(options);
  message_of(ErrorKind::kConfig, [&] { seeded.restore(batch.state); });

  Loader other = one(options_of(2, 4));
  message_of(ErrorKind::kData, [&] { other.restore(batch.state); });
  EXPECT_FALSE(other.restore(batch.state, true));
  EXPECT_EQ(other.state().consumed, 0);
  EXPECT_EQ(other.state().before, 4);
  Loader longer = one(options_of(2, 4), 16);
  message_of(ErrorKind::kData, [&] { longer.restore(other.state()); });
}

TEST_F(LoaderTest, BatchSizesMustDivide) {
  message_of(ErrorKind::kConfig, [&] { one(options_of(3, 4)); });
  message_of(ErrorKind::kConfig, [&] { one(options_of(0, 4)); });
  const std::string message = message_of(ErrorKind::kConfig, [&] { one(options_of(1, 4, 3)); });
  EXPECT_EQ(message,
            "data.num_streams is 3 but train.global_batch is 4; expected a divisor of it, as 4");
}

TEST_F(LoaderTest, TokensOutsideTheVocabularyAreErrors) {
  LoaderOptions options = options_of(1, 1);
  options.vocab_size = 100;
  Loader loader = one(options);
  const std::string message = message_of(ErrorKind::kData, [&] { take(loader, 40); });
  EXPECT_NE(message.find("a.bin: token "), std::string::npos) << message;
}

TEST(LoaderState, ArraysAreCheckedWhenRead) {
  LoaderState state = first_state(2);
  state.before = 20;
  state.taken_before = {5, 15};
  state.orders = {1, 0};
  state.datasets = {uint64_t{1} << 63, 5};
  state.consumed = 10;
  state.counts = {7, 3};
  state.seed = ~uint64_t{0};
  state.fingerprint = uint64_t{1} << 63;
  const auto good = to_arrays(state);
  EXPECT_EQ(loader_state_from(good), state);

  const auto fails = [&](auto change) {
    auto arrays = good;
    change(arrays);
    return message_of(ErrorKind::kCorrupt, [&] { loader_state_from(arrays); });
  };
  EXPECT_NE(fails([](auto& a) { a[0].name = "consume"; }).find("'consumed'"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[0].values = {}; }).find("0 values"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[0].values = {-1}; }).find("is -1"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[0].values = {11}; }).find("adds up to 10"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[1].values = {-1, 11}; }).find("-1"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a.push_back({"more", {}}); }).find("12 arrays"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a.pop_back(); }).find("10 arrays"), std::string::npos);
  for (const size_t i : {8, 9, 10}) {
    EXPECT_NE(fails([&](auto& a) { a[i].values.push_back(0); }).find("3 values"),
              std::string::npos);
    EXPECT_NE(fails([&](auto& a) { a[i].name = "x"; }).find("has no array"), std::string::npos);
  }
  EXPECT_NE(fails([](auto& a) { a[7].values = {-1}; }).find("is -1"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[8].values[0] = -2; }).find("holds -2"), std::string::npos);
  EXPECT_NE(fails([](auto& a) { a[9].values[1] = -2; }).find("holds -2"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::data
