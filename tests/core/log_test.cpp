#include "ashlar/core/log.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

class LogTest : public testing::Test {
 protected:
  // A progress whose clock the test turns.
  Progress progress(int64_t total, const std::string& unit) {
    return Progress(log_, "tokenizing", total, unit, [this] { return now_; });
  }
  void wait(double seconds) {
    now_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds));
  }

  std::vector<std::string> lines_;
  Log log_{[this](std::string_view line) { lines_.emplace_back(line); }};
  std::chrono::steady_clock::time_point now_{};
};

TEST_F(LogTest, PrefixesWarnings) {
  log_.info("{} of {}", 1, 2);
  log_.warn("only {}", "one");
  EXPECT_EQ(lines_, (std::vector<std::string>{"1 of 2", "warning: only one"}));
  EXPECT_FALSE(log_.interactive());
}

TEST_F(LogTest, TextOfOthersStaysOnItsLine) {
  const std::string host = "\x1b]0;owned\x07\x1b[2J\nashlar: all good\r\xc2\x9b";
  log_.info("held on {}", host);
  log_.warn("held on {}", host);
  const std::string shown = "held on ?]0;owned??[2J?ashlar: all good???";
  EXPECT_EQ(lines_, (std::vector<std::string>{shown, "warning: " + shown}));
}

TEST_F(LogTest, OwnLinesStay) {
  log_.lines("\n1 |*\n  +-\x1b\n");
  EXPECT_EQ(lines_, (std::vector<std::string>{"\n1 |*\n  +-?\n"}));
}

TEST_F(LogTest, LabelsOfProgressArePrintable) {
  {
    Progress reading(log_, "reading a\n\x1b[2J", 0, "rows", [this] { return now_; });
    wait(2);
    reading.set(5000);
  }
  EXPECT_EQ(lines_[0], "reading a??[2J  5k rows 2.5k rows/s");
}

TEST_F(LogTest, ShortWorkPrintsNothing) {
  {
    Progress short_work = progress(10, "rows");
    wait(1.9);
    short_work.set(10);
  }
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, PrintsAtTwoSecondsThenEveryTenAndAtTheEnd) {
  {
    Progress bytes = progress(30100000, "B");
    wait(3);
    bytes.set(12300000);
    wait(5);
    bytes.set(20000000);
    wait(5);
    bytes.advance(100000);
    wait(1);
    bytes.set(30100000);
  }
  EXPECT_EQ(lines_,
            (std::vector<std::string>{"tokenizing  41% 12.3 MB/30.1 MB 4.1 MB/s ETA 4 s",
                                      "tokenizing  67% 20.1 MB/30.1 MB 1.5 MB/s ETA 6 s",
                                      "tokenizing  100% 30.1 MB/30.1 MB 2.1 MB/s in 14 s"}));
}

TEST_F(LogTest, UnknownTotalHasNoShare) {
  Progress rows = progress(0, "rows");
  wait(2);
  rows.set(5000);
  EXPECT_EQ(lines_, (std::vector<std::string>{"tokenizing  5k rows 2.5k rows/s"}));
}

TEST_F(LogTest, WorkWithoutCountsShowsItsTime) {
  Progress blind = progress(0, "s");
  wait(75);
  blind.set(75);
  EXPECT_EQ(lines_, (std::vector<std::string>{"tokenizing  1m15s"}));
}

TEST_F(LogTest, NothingDoneYetHasNoEstimate) {
  Progress rows = progress(8, "rows");
  wait(2);
  rows.set(0);
  EXPECT_EQ(lines_, (std::vector<std::string>{"tokenizing  0% 0/8 rows 0 rows/s"}));
}

TEST(Log, WritesToStandardError) {
  testing::internal::CaptureStderr();
  Log log;
  log.info("hello");
  log.warn("careful");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "hello\nwarning: careful\n");
}

}  // namespace
}  // namespace ashlar
