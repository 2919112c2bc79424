#include "ashlar/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ashlar/core/rng.h"
#include "ashlar/data/blend.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

LoaderOptions options_of(int64_t micro_batch, int64_t global_batch, int64_t num_streams = 0) {
  LoaderOptions options;
  options.micro_batch = micro_batch;
  options.global_batch = global_batch;
  options.num_streams = num_streams;
  options.vocab_size = kTestVocab;
  return options;
}

// Two datasets, 0 with ids from 0 and 1 with ids from 500,000.
class LoaderTest : public testing::Test {
 protected:
  LoaderTest() {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 40; ++i) lengths.push_back(1 + (i * 7) % 23);
    write_counting(*files, "a", lengths);
    write_counting(*files, "b", {50, 3, 31}, 500'000);
  }
  Loader blend(LoaderOptions options, Packing packing = Packing::kConcat) {
    return Loader({source_of(*files, "a", 8, packing, 3), source_of(*files, "b", 8, packing, 1)},
                  options);
  }
  Loader one(LoaderOptions options, int64_t length = 8, Packing packing = Packing::kConcat) {
    return Loader({source_of(*files, "a", length, packing)}, options);
  }
  std::unique_ptr<FileSystem> files = memory_files();
};

struct Row {
  int64_t sample;
  int32_t dataset;
  std::vector<int32_t> ids, targets;
  friend auto operator<=>(const Row&, const Row&) = default;
};

std::vector<Row> rows_of(const Batch& batch) {
  std::vector<Row> rows;
  for (int64_t b = 0; b < batch.num_rows; ++b) {
    const auto begin = b * batch.length, end = begin + batch.length;
    rows.push_back({batch.samples_B[static_cast<size_t>(b)],
                    batch.datasets_B[static_cast<size_t>(b)],
                    {batch.ids_BT.begin() + begin, batch.ids_BT.begin() + end},
                    {batch.targets_BT.begin() + begin, batch.targets_BT.begin() + end}});
  }
  return rows;
}

std::vector<Row> take(Loader& loader, int64_t num_rows) {
  std::vector<Row> rows;
  for (Batch batch; static_cast<int64_t>(rows.size()) < num_rows;) {
    loader.next(batch);
    for (Row& row : rows_of(batch)) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Row> sorted(std::vector<Row> rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

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

// ---- another blend

struct Part {
  std::string prefix;
  double weight;
};

// The sequences of each dataset in a run of it alone.  They are the same in any blend in which it
// has the same order number.
using Sequences = std::map<std::string, std::vector<std::vector<int32_t>>>;

class NewBlend : public LoaderTest {
 protected:
  NewBlend() { write_counting(*files, "c", {200}, 700'000); }
  Loader of(const std::vector<Part>& parts, int64_t length = 8) {
    std::vector<Source> sources;
    for (const Part& part : parts)
      sources.push_back(source_of(*files, part.prefix, length, Packing::kConcat, part.weight));
    return Loader(std::move(sources), options_of(2, 4));
  }
  // Rows of each dataset, in their order, that the loader gives next.
  static void take_into(Sequences& sequences, Loader& loader, int64_t num_rows) {
    for (const Row& row : sorted(take(loader, num_rows)))
      sequences[loader.sources()[size_t(row.dataset)].prefix()].push_back(row.ids);
  }
  Loader after(const Loader& before, const std::vector<Part>& parts, int64_t length = 8) {
    Loader loader = of(parts, length);
    EXPECT_FALSE(loader.restore(loader_state_from(to_arrays(before.state())), true));
    return loader;
  }
};

TEST_F(NewBlend, DatasetsThatStayGoOnAndNewOnesBegin) {
  const std::vector<Part> first = {{"a", 0.5}, {"b", 0.5}};
  Sequences straight;
  Loader long_run = of({{"a", 0.4}, {"b", 0.3}, {"c", 0.3}});  // orders 0, 1, 2
  take_into(straight, long_run, 400);
  for (const std::vector<Part>& second : {std::vector<Part>{{"a", 0.2}, {"b", 0.8}},
                                          {{"b", 0.8}, {"a", 0.2}},
                                          {{"b", 1}},
                                          {{"a", 1}},
                                          {{"c", 0.5}, {"b", 0.25}, {"a", 0.25}},
                                          {{"c", 0.5}, {"a", 0.5}},
                                          {{"c", 1}}}) {
    Sequences rows;
    Loader loader = of(first);
    take_into(rows, loader, 40);
    Loader next = after(loader, second);
    EXPECT_EQ(next.state().before, 40);
    take_into(rows, next, 60);
    Loader resumed = of(second);
    EXPECT_TRUE(resumed.restore(loader_state_from(to_arrays(next.state()))));
    take_into(rows, resumed, 20);
    size_t num_rows = 0;
    for (const auto& [prefix, sequence] : rows) {
      const auto& expected = straight.at(prefix);
      num_rows += sequence.size();
      ASSERT_LE(sequence.size(), expected.size());
      EXPECT_TRUE(std::equal(sequence.begin(), sequence.end(), expected.begin()))
          << prefix << " of a blend that begins with " << second[0].prefix;
    }
    EXPECT_EQ(num_rows, 120u);
  }
}

TEST_F(NewBlend, ItsWeightsHoldFromThereOn) {
  Loader loader = of({{"a", 0.5}, {"b", 0.5}});
  take(loader, 400);
  Loader next = after(loader, {{"a", 0.2}, {"b", 0.8}});
  int64_t of_b = 0;
  for (const Row& row : take(next, 40)) of_b += row.dataset == 1;
  EXPECT_EQ(of_b, 32);
}

TEST_F(NewBlend, SamplesOfTheRunAreNumberedOn) {
  Loader loader = of({{"a", 1}});
  take(loader, 8);
  Loader next = after(loader, {{"b", 1}});
  take(next, 4);
  Loader third = after(next, {{"a", 1}});
  EXPECT_EQ(third.state().before, 12);
  EXPECT_EQ(sorted(take(third, 4))[0].sample, 12);
  EXPECT_EQ(next_sample(third.state()), 16);
  EXPECT_EQ(third.state().taken_before, std::vector<int64_t>{0}) << "b's state knows nothing of a";
}

TEST_F(NewBlend, ADatasetThatIsNamedTwiceGoesOnTwice) {
  Loader loader = of({{"a", 3}, {"a", 1}});
  take(loader, 40);
  Loader next = after(loader, {{"a", 1}, {"a", 1}, {"a", 2}});
  EXPECT_EQ(next.state().taken_before, (std::vector<int64_t>{30, 10, 0}));
  EXPECT_EQ(next.state().orders, (std::vector<int64_t>{0, 1, 2}));
}

TEST_F(NewBlend, OtherSamplesOfADatasetBegin) {
  Loader loader = of({{"a", 1}, {"b", 1}});
  take(loader, 40);
  Loader longer = after(loader, {{"a", 1}, {"b", 1}}, 16);
  EXPECT_EQ(longer.state().taken_before, (std::vector<int64_t>{0, 0}));
  write_counting(*files, "a", {300});
  Loader other = after(loader, {{"a", 1}, {"b", 1}});
  EXPECT_EQ(other.state().taken_before, (std::vector<int64_t>{0, 20}));
}

// Seven arrays, as older versions wrote them: which datasets they were is not known.
TEST_F(NewBlend, StatesOfOlderVersionsGoOnWithTheSameDataAndBeginWithOther) {
  Loader loader = of({{"a", 1}, {"b", 1}});
  take(loader, 40);
  auto arrays = to_arrays(loader.state());
  arrays.resize(7);
  Loader same = of({{"a", 1}, {"b", 1}});
  EXPECT_TRUE(same.restore(loader_state_from(arrays)));
  EXPECT_EQ(same.state(), loader.state());
  EXPECT_EQ(take(same, 20), take(loader, 20));
  Loader other = of({{"a", 1}, {"b", 3}});
  EXPECT_FALSE(other.restore(loader_state_from(arrays), true));
  EXPECT_EQ(other.state().before, 40);
  EXPECT_EQ(other.state().taken_before, (std::vector<int64_t>{0, 0}));
}

TEST_F(NewBlend, BeginsBetweenGlobalBatchesWithTheSameSeed) {
  Loader loader = of({{"a", 1}});
  take(loader, 2);
  Loader other = of({{"b", 1}});
  const std::string message =
      message_of(ErrorKind::kConfig, [&] { other.restore(loader.state(), true); });
  EXPECT_NE(message.find("stands 2 samples inside a global batch"), message.npos) << message;
  take(loader, 2);
  LoaderState seeded = loader.state();
  seeded.seed = 9;
  message_of(ErrorKind::kConfig, [&] { other.restore(seeded, true); });
  EXPECT_EQ(other.state().before, 0) << "a refused state changes nothing";
}

TEST_F(LoaderTest, DocumentsSplitRowsIntoSegments) {
  write_counting(*files, "d", {3, 2, 4, 8});  // 17 tokens: two samples of 8
  LoaderOptions options = options_of(2, 2);
  options.shuffle = false;
  Batch batch;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(
      batch.segments,
      (std::vector<Segment>{{0, 3, 0, 0}, {3, 2, 0, 1}, {5, 3, 0, 2}, {8, 1, 0, 3}, {9, 7, 0, 4}}));
  EXPECT_EQ(batch.num_targets, 16);

  options.mask_document_end = true;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{1, 2, -1, 4, -1, 6, 7, 8,  //
                                                    -1, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(batch.num_targets, 13);

  options.document_reset = false;
  Loader({source_of(*files, "d", 8)}, options).next(batch);
  EXPECT_EQ(batch.segments, (std::vector<Segment>{{0, 8, 0, 0}, {8, 8, 0, 1}}));
}

// A row has the same tokens in each length: the last token that was read is a target, and what
// follows the others is padding.
TEST_F(LoaderTest, PaddingBeginsWhereTheTargetsEnd) {
  struct Row {
    std::vector<int64_t> documents;
    bool document_reset;
    std::vector<Segment> segments;  // of the row's first tokens
  };
  for (const Row& row :
       std::vector<Row>{{{6}, true, {{0, 5, 0, 0}}},
                        {{3, 3}, true, {{0, 3, 0, 0}, {3, 2, 0, 1}}},
                        {{5, 1}, true, {{0, 5, 0, 0}}},  // the second document is a target only
                        {{3, 3}, false, {{0, 5, 0, 0}}},
                        {{1}, true, {}},
                        {{1}, false, {}}}) {
    write_counting(*files, "d", row.documents);
    const int64_t inputs = row.segments.empty() ? 0 : 5;
    for (const int64_t length : {5, 6, 7, 20}) {
      LoaderOptions options = options_of(1, 1);
      options.document_reset = row.document_reset;
      Batch batch;
      Loader({source_of(*files, "d", length, Packing::kBestFit)}, options).next(batch);
      std::vector<Segment> want = row.segments;
      if (inputs < length)
        want.push_back({inputs, length - inputs, 0, std::ssize(want), /*padding=*/true});
      EXPECT_EQ(batch.segments, want) << "length " << length;
      EXPECT_EQ(batch.num_targets, inputs);
    }
    for (const char* end : {"d.idx", "d.bin"}) files->remove(end);
  }
}

TEST_F(LoaderTest, BestFitPadsWithoutLoss) {
  write_counting(*files, "d", {3, 2, 9, 4, 12});  // the last is longer than a window of 9
  LoaderOptions options = options_of(2, 2);
  options.shuffle = false;
  options.pad_id = 777;
  Loader loader({source_of(*files, "d", 8, Packing::kBestFit)}, options);
  EXPECT_EQ(loader.sources()[0].samples.num_dropped(), 1);
  Batch batch;
  loader.next(batch);
  EXPECT_EQ(batch.ids_BT, (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11, 12,  //
                                                14, 15, 16, 17, 0, 1, 2, 3}));
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{6, 7, 8, 9, 10, 11, 12, 13,  //
                                                    15, 16, 17, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.segments,
            (std::vector<Segment>{{0, 8, 0, 0}, {8, 4, 0, 1}, {12, 3, 0, 2}, {15, 1, 0, 3}}));

  write_counting(*files, "e", {4, 2});
  Loader({source_of(*files, "e", 9, Packing::kBestFit)}, options_of(1, 1)).next(batch);
  EXPECT_EQ(batch.targets_BT, (std::vector<int32_t>{1, 2, 3, 4, 5, -1, -1, -1, -1}));
  EXPECT_EQ(batch.segments, (std::vector<Segment>{{0, 4, 0, 0}, {4, 1, 0, 1}, {5, 4, 0, 2, true}}));
}

TEST_F(LoaderTest, SegmentsTileTheBatch) {
  const Rng rng(3, "tile");
  for (uint64_t trial = 0; trial < 20; ++trial) {
    const auto length = static_cast<int64_t>(2 + rng.below(trial, 30));
    for (const Packing packing : {Packing::kConcat, Packing::kBestFit}) {
      Loader loader = one(options_of(3, 3), length, packing);
      Batch batch;
      for (int i = 0; i < 5; ++i) {
        loader.next(batch);
        int64_t row = 0;
        for (size_t s = 0; s < batch.segments.size(); ++s) {
          EXPECT_EQ(batch.segments[s].row, row);
          EXPECT_EQ(batch.segments[s].document, static_cast<int64_t>(s));
          EXPECT_EQ(row / length, (row + batch.segments[s].length - 1) / length) << "one row each";
          row += batch.segments[s].length;
        }
        EXPECT_EQ(row, 3 * length);
      }
    }
  }
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
