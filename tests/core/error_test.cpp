#include "ashlar/core/error.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "ashlar/core/function_ref.h"

namespace ashlar {
namespace {

TEST(Error, CarriesKindCodeAndMessage) {
  try {
    ASHLAR_REQUIRE(1 + 1 == 3, kStorage, "found {}, expected {}", 2, 3);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kStorage);
    EXPECT_EQ(error.exit_code(), 25);
    EXPECT_STREQ(error.what(), "found 2, expected 3");
  }
  EXPECT_NO_THROW(ASHLAR_REQUIRE(true, kStorage, "never"));
  EXPECT_THROW(ASHLAR_FAIL(kConfig, "always"), Error);
}

TEST(Error, NamesOfOthersNeitherBreakTheLineNorCommandTheTerminal) {
  const std::string name = "a\nashlar: all good\x1b[2J\xff";
  try {
    ASHLAR_FAIL(kData, "{}: no such shard", name);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a?ashlar: all good?[2J\xEF\xBF\xBD: no such shard");
    EXPECT_EQ(error.first_line(), error.what());
    EXPECT_EQ(error.further_lines(), "");
  }
  EXPECT_EQ(report_of(std::make_exception_ptr(std::runtime_error(name))).message,
            "internal error: a?ashlar: all good?[2J\xEF\xBF\xBD");
}

TEST(Error, OwnLinesFollowTheMessage) {
  const Error error(ErrorKind::kMemory, "no\nroom", "weights 1\ntotal 1\x07");
  EXPECT_STREQ(error.what(), "no?room\nweights 1\ntotal 1?");
  EXPECT_EQ(error.first_line(), "no?room");
  EXPECT_EQ(error.further_lines(), "weights 1\ntotal 1?");
}

TEST(Error, OfAnyExceptionThereIsSomethingToTell) {
  const auto told = [](const auto& error) { return report_of(std::make_exception_ptr(error)); };
  const Report own = told(Error(ErrorKind::kData, "bad text"));
  EXPECT_EQ(own.exit_code, 24);
  EXPECT_EQ(own.message, "bad text");
  EXPECT_EQ(told(std::bad_alloc()).exit_code, 22);
  EXPECT_EQ(told(std::runtime_error("boo")).exit_code, 70);
  EXPECT_EQ(told(std::runtime_error("boo")).message, "internal error: boo");
  EXPECT_EQ(told(5).exit_code, 70);
}

TEST(ErrorDeathTest, AssertNamesPlaceAndCondition) {
  EXPECT_DEATH(ASHLAR_ASSERT(2 < 1), "error_test.cpp:[0-9]+: internal error: 2 < 1 is false");
}

int apply(function_ref<int(int)> f, int x) {
  return f(x);
}
int twice(int x) {
  return 2 * x;
}

TEST(FunctionRef, CallsLambdasWithStateConstObjectsAndFunctions) {
  int calls = 0;
  auto counting = [&](int x) { return ++calls, x + 1; };
  EXPECT_EQ(apply(counting, 4), 5);
  EXPECT_EQ(calls, 1);
  const auto constant = [](int) { return 9; };
  EXPECT_EQ(apply(constant, 0), 9);
  EXPECT_EQ(apply([&](int x) { return x * calls; }, 3), 3);
  const auto pointer = &twice;
  EXPECT_EQ(apply(pointer, 6), 12);
}

}  // namespace
}  // namespace ashlar
