#include "ashlar/data/samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ashlar/core/rng.h"
#include "ashlar/data/blend.h"
#include "tests/data/support.h"

namespace ashlar::data {
namespace {

std::vector<TokenPosition> starts_of(const DatasetIndex& index, int64_t length) {
  const Samples samples(index, {0, index.num_tokens()}, length, Packing::kConcat);
  std::vector<TokenPosition> places;
  std::vector<DocumentSpan> spans;
  for (int64_t j = 0; j < samples.size(); ++j) {
    samples.spans(index, j, spans);
    places.push_back(index.locate(spans.front().begin));
  }
  return places;
}

TEST(Samples, ConcatenateAndSplit) {
  const auto files = memory_files();
  write_counting(*files, "x", {3, 2, 4});
  const IndexedDataset dataset(*files, "x");
  const DatasetIndex& index = dataset.index();
  EXPECT_EQ(starts_of(index, 4), (std::vector<TokenPosition>{{0, 0}, {1, 1}}));
  EXPECT_EQ(starts_of(index, 2), (std::vector<TokenPosition>{{0, 0}, {0, 2}, {1, 1}, {2, 1}}));
  EXPECT_EQ(starts_of(index, 3), (std::vector<TokenPosition>{{0, 0}, {1, 0}}));
  EXPECT_EQ(starts_of(index, 8).size(), 1u);
  EXPECT_EQ(starts_of(index, 9).size(), 0u);
}

TEST(Samples, PiecesTileTheSampleAndKnowDocumentStarts) {
  const auto files = memory_files();
  write_counting(*files, "x", {3, 0, 2, 4});
  const IndexedDataset dataset(*files, "x");
  const Samples samples(dataset.index(), {0, 9}, 4, Packing::kConcat);
  std::vector<DocumentSpan> spans;
  samples.spans(dataset.index(), 0, spans);
  EXPECT_EQ(spans, (std::vector<DocumentSpan>{{0, 3, true}, {3, 2, true}}));
  samples.spans(dataset.index(), 1, spans);
  EXPECT_EQ(spans, (std::vector<DocumentSpan>{{4, 1, false}, {5, 4, true}}));
}

TEST(Samples, StayInTheirRange) {
  const auto files = memory_files();
  write_counting(*files, "x", {10, 10, 10});
  const IndexedDataset dataset(*files, "x");
  for (const TokenRange range : {TokenRange{0, 13}, TokenRange{13, 30}, TokenRange{7, 19}}) {
    const Samples samples(dataset.index(), range, 3, Packing::kConcat);
    EXPECT_EQ(samples.size(), (range.size() - 1) / 3);
    std::vector<DocumentSpan> spans;
    for (int64_t j = 0; j < samples.size(); ++j) {
      samples.spans(dataset.index(), j, spans);
      EXPECT_GE(spans.front().begin, range.begin);
      EXPECT_LE(spans.back().begin + spans.back().length, range.end);
    }
  }
  const Samples whole(dataset.index(), {5, 25}, 9, Packing::kBestFit);
  EXPECT_EQ(whole.size(), 1) << "only the middle document lies in it as a whole";
}

// The tokens that are left make a sample with fewer of them.
TEST(Samples, TheRestMayBeASample) {
  const auto files = memory_files();
  write_counting(*files, "x", {3, 2, 4, 2});
  const IndexedDataset dataset(*files, "x");
  std::vector<DocumentSpan> spans;
  const auto of = [&](TokenRange range, int64_t length) {
    return Samples(dataset.index(), range, length, Packing::kConcat, Rest::kKeep);
  };
  EXPECT_EQ(of({0, 11}, 5).size(), 2);
  EXPECT_EQ(of({0, 11}, 10).size(), 1);
  EXPECT_EQ(of({0, 1}, 4).size(), 0);
  EXPECT_EQ(of({0, 0}, 4).size(), 0);
  const Samples samples = of({0, 11}, 4);
  EXPECT_EQ(samples.size(), 3);
  samples.spans(dataset.index(), 1, spans);
  EXPECT_EQ(spans, (std::vector<DocumentSpan>{{4, 1, false}, {5, 4, true}}));
  samples.spans(dataset.index(), 2, spans);
  EXPECT_EQ(spans, (std::vector<DocumentSpan>{{8, 1, false}, {9, 2, true}}));
  of({2, 8}, 4).spans(dataset.index(), 1, spans);
  EXPECT_EQ(spans, (std::vector<DocumentSpan>{{6, 2, false}})) << "not past the range";
}

// The rule word by word: sort, then look at every window for the fullest one that fits.
std::vector<std::vector<int64_t>> plain_best_fit(const std::vector<int64_t>& lengths,
                                                 int64_t capacity) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] > 0 && lengths[i] <= capacity) order.push_back(static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::vector<std::vector<int64_t>> windows;
  std::vector<int64_t> used;
  for (const int64_t item : order) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    size_t best = windows.size();
    for (size_t w = 0; w < windows.size(); ++w)
      if (used[w] + length <= capacity && (best == windows.size() || used[w] > used[best]))
        best = w;
    if (best == windows.size()) {
      windows.emplace_back();
      used.push_back(0);
    }
    windows[best].push_back(item);
    used[best] += length;
  }
  return windows;
}

TEST(Packing, BestFitDecreasingAgreesWithThePlainRule) {
  const Rng rng(5, "packing");
  for (uint64_t trial = 0; trial < 60; ++trial) {
    const int64_t capacity = 5 + static_cast<int64_t>(trial) * 3;
    std::vector<int64_t> lengths;
    for (uint64_t i = 0; i < 10 + trial * 4; ++i)
      lengths.push_back(
          static_cast<int64_t>(rng.below(trial * 1000 + i, static_cast<uint64_t>(capacity) + 4)));
    const Windows windows = pack_best_fit(lengths, capacity);
    const auto expected = plain_best_fit(lengths, capacity);
    ASSERT_EQ(windows.size(), static_cast<int64_t>(expected.size()));
    for (int64_t w = 0; w < windows.size(); ++w) {
      const auto items = windows.items_of(w);
      EXPECT_EQ(std::vector<int64_t>(items.begin(), items.end()), expected[static_cast<size_t>(w)]);
    }
    EXPECT_EQ(windows.num_dropped, std::count_if(lengths.begin(), lengths.end(),
                                                 [&](int64_t n) { return n > capacity; }));
  }
  EXPECT_EQ(pack_best_fit({}, 4).size(), 0);
}

TEST(Packing, NeverCutsADocument) {
  const auto files = memory_files();
  std::vector<int64_t> lengths;
  const Rng rng(6, "lengths");
  for (uint64_t i = 0; i < 300; ++i) lengths.push_back(1 + static_cast<int64_t>(rng.below(i, 40)));
  write_counting(*files, "x", lengths);
  const IndexedDataset dataset(*files, "x");
  const DatasetIndex& index = dataset.index();
  const Samples samples(index, {0, index.num_tokens()}, 31, Packing::kBestFit);
  std::set<int64_t> seen;
  std::vector<DocumentSpan> spans;
  for (int64_t j = 0; j < samples.size(); ++j) {
    samples.spans(index, j, spans);
    int64_t sum = 0;
    for (const DocumentSpan& span : spans) {
      const TokenPosition place = index.locate(span.begin);
      EXPECT_EQ(place.offset, 0);
      EXPECT_EQ(span.length, index.document_length(place.document));
      EXPECT_TRUE(seen.insert(place.document).second) << "each document once";
      sum += span.length;
    }
    EXPECT_LE(sum, 32);
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()) + samples.num_dropped(), 300);
  EXPECT_GT(samples.num_dropped(), 0);
  EXPECT_GT(samples.dropped_tokens(), samples.num_dropped() * (samples.sequence_length() + 1));
}

TEST(Blend, TakesTheLargestDeficit) {
  const std::vector<double> weights = normalized_weights(std::vector<double>{5, 3, 2});
  std::vector<int64_t> counts(3, 0), chosen;
  for (int64_t i = 0; i < 10; ++i) {
    chosen.push_back(blend_choice(weights, i, counts));
    ++counts[static_cast<size_t>(chosen.back())];
  }
  EXPECT_EQ(chosen, (std::vector<int64_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0}));
}

TEST(Blend, PassesOverWhatIsUsedUp) {
  const std::vector<double> weights = normalized_weights(std::vector<double>{5, 3, 2});
  const std::vector<int64_t> sizes = {2, 4, 1};
  std::vector<int64_t> counts(3, 0), chosen;
  for (int64_t i = 0; i < 7; ++i) {
    chosen.push_back(blend_choice(weights, i, counts, sizes));
    ++counts[static_cast<size_t>(chosen.back())];
  }
  EXPECT_EQ(chosen, (std::vector<int64_t>{0, 1, 2, 0, 1, 1, 1}));
}

TEST(Blend, RatiosStayWithinOneSample) {
  const std::vector<double> weights = normalized_weights(std::vector<double>{0.613, 0.2, 0.187});
  std::vector<int64_t> counts(3, 0);
  for (int64_t i = 0; i < 20'000; ++i) {
    ++counts[static_cast<size_t>(blend_choice(weights, i, counts))];
    for (size_t d = 0; d < 3; ++d)
      ASSERT_LT(std::abs(static_cast<double>(counts[d]) - weights[d] * static_cast<double>(i + 1)),
                2.0);
  }
}

TEST(Blend, WeightsMustBePositive) {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()})
    EXPECT_NE(message_of(ErrorKind::kConfig,
                         [&] {
                           normalized_weights(std::vector{1.0, bad});
                         }),
              "");
}

}  // namespace
}  // namespace ashlar::data
