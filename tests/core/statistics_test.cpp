#include "ashlar/core/statistics.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

TEST(Summarize, OddEvenAndSingle) {
  const Summary odd = summarize(std::vector<double>{3, 1, 2});
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.mean, 2);
  EXPECT_EQ(odd.p99, 3);
  EXPECT_EQ(odd.max, 3);
  EXPECT_EQ(odd.count, 3u);
  EXPECT_EQ(summarize(std::vector<double>{4, 1, 2, 10}).median, 3);
  const Summary one = summarize(std::vector<double>{5});
  EXPECT_EQ(one.min, 5);
  EXPECT_EQ(one.median, 5);
  EXPECT_EQ(one.p99, 5);
}

TEST(Summarize, NinetyNinthPercentileIsTheNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(summarize(values).p99, 99);
  values.push_back(101);
  EXPECT_EQ(summarize(values).p99, 100);
}

TEST(SummarizeDeathTest, RefusesNothing) {
  EXPECT_DEATH(summarize({}), "empty");
}

TEST(Window, KnowsTheLargestOfItsLastValues) {
  Window window(3);
  EXPECT_EQ(window.largest(), -std::numeric_limits<double>::infinity());
  const double values[] = {-7.0, -9.0, -8.0, 1000.0, 1.0, 2.0, 3.0},
               largest[] = {-7.0, -7.0, -7.0, 1000.0, 1000.0, 1000.0, 3.0};
  for (size_t i = 0; i < std::size(values); ++i) {
    window.add(values[i]);
    EXPECT_EQ(window.largest(), largest[i]) << i;
    EXPECT_EQ(window.full(), i >= 2) << i;
  }
}

TEST(Window, RestoresWhatItGave) {
  for (const int num_values : {2, 3, 7}) {
    Window window(3);
    for (int i = 0; i < num_values; ++i) window.add(i * i);
    Window copy(3);
    copy.restore(window.values(), window.count());
    for (const double next : {5.0, 6.0, 1.0, 2.0, 70.0}) {
      EXPECT_EQ(copy.largest(), window.largest());
      copy.add(next);
      window.add(next);
    }
    EXPECT_EQ(copy.count(), window.count());
  }
}

TEST(Window, TakesTheNewestOfAWindowOfAnotherSize) {
  for (const int num_values : {4, 5, 6, 11}) {
    Window four(4);
    for (int i = 0; i < num_values; ++i) four.add(i * i);
    for (const size_t size : {2, 3, 5, 6}) {
      SCOPED_TRACE(fmt::format("{} of {} values", size, num_values));
      Window other(size), expected(size);
      for (int i = num_values - 4; i < num_values; ++i) expected.add(i * i);
      other.restore(four.values(), four.count());
      for (const double next : {5.0, 6.0, 1.0, 2.0, 70.0}) {
        EXPECT_EQ(other.full(), expected.full());
        EXPECT_EQ(other.largest(), expected.largest());
        other.add(next);
        expected.add(next);
      }
    }
  }
}

TEST(Window, RefusesWhatNoWindowGives) {
  Window window(3);
  EXPECT_THROW(window.restore(std::vector<double>{1, 2, 3, 4}, 3), Error);
  EXPECT_THROW(window.restore(std::vector<double>{}, 3), Error);
  EXPECT_THROW(window.restore(std::vector<double>{1}, 0), Error);
  EXPECT_NO_THROW(window.restore(std::vector<double>{}, 0));
}

}  // namespace
}  // namespace ashlar
