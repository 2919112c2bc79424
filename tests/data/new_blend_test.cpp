// A run that goes on with another blend of datasets.
#include <map>

#include "tests/data/loader_case.h"

namespace ashlar::data {
namespace {

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

}  // namespace
}  // namespace ashlar::data
