// Times of kernels from a table: exact, between two, by law.
#include "ashlar/sim/kernel_times.h"

#include <gtest/gtest.h>

#include "tests/sim/expect_error.h"

namespace ashlar::sim {
namespace {

using testing_support::expect_error;

using Table = std::vector<machine::TimedKernel>;

machine::TimedKernel row(const char* op, int64_t flop, int64_t bytes, double us, int ranks = 2) {
  machine::TimedKernel kernel;
  kernel.op = op;
  kernel.dtype = "BF16";
  kernel.flop = flop;
  kernel.bytes = bytes;
  kernel.ranks = ranks;
  kernel.p10_us = kernel.median_us = kernel.p90_us = us;
  return kernel;
}

KernelWork work(const char* op, int64_t flop, int64_t bytes) {
  return {.op = op, .dtype = DType::kBF16, .flop = flop, .bytes = bytes};
}

TEST(WorkTimes, TheSameWorkIsExact) {
  const machine::Profile profile;
  const Table table = {row("copy", 0, 1000, 5), row("copy", 0, 1000, 7, 4)};
  const WorkTimes times(profile, table);
  const WorkTime time = times.of(work("copy", 0, 1000));
  EXPECT_EQ(time.source, TimeSource::kExact);
  EXPECT_DOUBLE_EQ(time.seconds, 7e-6);  // the more ranks computed, the better
  EXPECT_EQ(times.num_ranks(), 4);
}

// Rows of 2 us + flop / 1e5 per us + bytes / 1e4 per us.
TEST(WorkTimes, BetweenTwoWorksTheOpsOwnLawHolds) {
  const machine::Profile profile;
  Table table;
  for (const int64_t n : {1, 3, 8, 20, 50})
    table.push_back(row("linear_forward", 100'000 * n, 10'000 * n * n % 90'000 + 1000,
                        2 + double(n) + double(10'000 * n * n % 90'000 + 1000) / 1e4));
  const WorkTimes times(profile, table);
  const WorkTime time = times.of(work("linear_forward", 1'000'000, 20'000));
  EXPECT_EQ(time.source, TimeSource::kNeighbour);
  EXPECT_NEAR(time.seconds, 14e-6, 1e-10);
  const WorkTime beyond = times.of(work("linear_forward", 100'000'000, 20'000));
  EXPECT_EQ(beyond.source, TimeSource::kLaw);
  EXPECT_NEAR(beyond.seconds, 1004e-6, 1e-8);
}

TEST(WorkTimes, AnUnknownOpTakesRatesOfTheProfile) {
  machine::Profile profile;
  profile.name = "here";
  profile.set("memory.triad", {20, "GB/s", machine::Origin::kMeasured, "", "", 0});
  const Table table = {row("copy", 0, 1'000'000, 100)};
  const WorkTimes times(profile, table);
  const WorkTime time = times.of(work("swiglu_forward", 0, 2'000'000));
  EXPECT_EQ(time.source, TimeSource::kLaw);
  EXPECT_DOUBLE_EQ(time.seconds, 100e-6);
  // One known work gives the efficiency: 1 MB at 10 GB/s, half of the triad.
  EXPECT_DOUBLE_EQ(times.of(work("copy", 0, 3'000'000)).seconds, 300e-6);
  EXPECT_EQ(times.of(work("copy", 0, 3'000'000)).source, TimeSource::kLaw);
  expect_error([&] { times.of(work("linear_forward", 1'000'000, 1000)); }, ErrorKind::kConfig,
               "ashlar bench products");
}

TEST(WorkTimes, TheLawHasNoNegativePart) {
  // Times that fall with bytes: the best law without a negative slope is a constant.
  const auto law = fit_law({{0, 100, 10}, {0, 200, 9}, {0, 300, 8}});
  EXPECT_EQ(law[2], 0);
  EXPECT_NEAR(law[0], 8.9, 0.1);
}

TEST(WorkTimes, ARowOfAnUnknownTypeIsAnError) {
  Table table = {row("copy", 0, 1000, 5)};
  table[0].dtype = "BF17";
  const machine::Profile profile;
  expect_error([&] { WorkTimes(profile, table); }, ErrorKind::kData, "of the type 'BF17'");
}

}  // namespace
}  // namespace ashlar::sim
