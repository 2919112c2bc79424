// The times that saves keep: ranks with slow file systems are named, all of them and no others.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "ashlar/checkpoint/writers/timing.h"
#include "tests/checkpoint/channels_test_util.h"

namespace ashlar::checkpoint {
namespace {

std::string timing_path(int64_t step) {
  return join("root", step_name(step) + "/extra/timing.json");
}

using TimedSaves = Channels;

// Eight ranks that save, of which a random one has a slow file system each time.
class EightRanks : public Channels {
 public:
  void TestBody() override {}
  // Number of saves after each of which the slow rank, and no other, is named for its writing.
  // Saves in which the machine itself held a rank up are left out.
  void run(uint64_t seed, int saves) {
    make(8, asynchronous(1000));
    Shares shares = Shares::rows(8);
    Draw draw(seed, "slow");
    for (int step = 1, done = 0; done < saves; ++step) {
      ASSERT_LT(step, 6 * saves) << "this machine has too much other work";
      const int slow = int(draw.below(8));
      slow_down(slow);
      save_weights(shares, step);
      const std::vector<RankTimes> ranks = (*this)[0].take_stats().at(0).ranks;
      expect_in_file(step, ranks);
      if (is_disturbed(ranks)) continue;
      ++done;
      std::vector<int> writing;
      for (const Outlier& outlier : find_outliers(ranks))
        if (outlier.phase == Phase::kWrite) writing.push_back(outlier.rank);
      EXPECT_EQ(writing, std::vector<int>{slow}) << step;
    }
  }

 private:
  // A write by that rank takes 100 ms, one by another 20 ms.
  void slow_down(int slow) {
    for (int rank = 0; rank < 8; ++rank) {
      asleep_[size_t(rank)] = 0;
      fails_[size_t(rank)] = [&asleep = asleep_[size_t(rank)], delay_s = rank == slow ? 0.1 : 0.02](
                                 std::string_view operation, const std::string& path) {
        if (operation != "write" || path.find("/shard-") == path.npos) return false;
        std::this_thread::sleep_for(std::chrono::duration<double>(delay_s));
        asleep = asleep + delay_s;
        return false;
      };
    }
  }
  bool is_disturbed(const std::vector<RankTimes>& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(), [&](const RankTimes& times) {
      return times.phases[size_t(Phase::kWrite)].seconds > asleep_[size_t(times.rank)] + 0.008;
    });
  }
  // Without the extra files that the leader has: all have two files.
  void save_weights(Shares& shares, int64_t step) {
    shares.fill(step);
    const Id attempt = random_id();
    for (int rank = 0; rank < size(); ++rank) {
      SaveRequest request = shares.request(rank, step, attempt);
      request.extra.clear();
      request.loader = {};
      (*this)[rank].save(request);
    }
    EXPECT_EQ(settle(), "");
  }
  void expect_in_file(int64_t step, const std::vector<RankTimes>& ranks) {
    const Timing timing = parse_timing(read_all(*memory_, timing_path(step)), "file");
    ASSERT_EQ(timing.ranks.size(), ranks.size());
    for (const Phase phase :
         {Phase::kPlan, Phase::kCopy, Phase::kHash, Phase::kWrite, Phase::kSync})
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        EXPECT_NEAR(timing.ranks[rank].phases[size_t(phase)].seconds,
                    ranks[rank].phases[size_t(phase)].seconds, 1e-6);
  }
  std::array<std::atomic<double>, 8> asleep_{};  // seconds of the save, by rank
};

TEST(SlowFiles, FiveTimesSlowerOnesAreNamedInEverySave) {
  constexpr int kRuns = 4, kSaves = 25;  // side by side, since they sleep most of the time
  EightRanks ranks[kRuns];               // tests are made and ended on one thread
  std::vector<std::thread> threads;
  for (int run = 0; run < kRuns; ++run)
    threads.emplace_back([&ranks, run] { ranks[run].run(uint64_t(run), kSaves); });
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TimedSaves, TheFileIsPartOfTheStep) {
  make(3, asynchronous(10));
  Shares shares = Shares::even(3);
  EXPECT_EQ(save(shares, 1), "");
  expect_step(*memory_, 1, 3);
  const StepReader reader(*memory_, join("root", step_name(1)));
  ASSERT_TRUE(reader.has_blob(std::string(kTimingFile)));
  const std::string text = reader.read_blob(kTimingFile);
  const Timing timing = parse_timing(text, "file");
  EXPECT_EQ(timing.step, 1);
  EXPECT_EQ(timing.num_writers, 3);
  std::vector<size_t> files(3);  // of each writer
  int64_t extra_bytes = 0;
  for (const IndexFile& file : reader.index().files) {
    files[file.writer - 1] += file.path != "extra/timing.json";
    if (file.component == Component::kExtra) extra_bytes += file.size_bytes;
  }
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(timing.ranks[rank].host, rank < 2 ? "n0" : "n1");
    EXPECT_EQ(timing.ranks[rank].file_s.size(), files[rank]);
    EXPECT_GT(timing.ranks[rank].phases[size_t(Phase::kWrite)].bytes, 0);
    EXPECT_EQ(timing.ranks[rank].phases[size_t(Phase::kCommit)].seconds, 0);
  }
  EXPECT_GT(timing.ranks[0].phases[size_t(Phase::kMerge)].seconds, 0);
  EXPECT_EQ(reader.manifest().components.at("extra").bytes, extra_bytes);
  // Damage of it is found like that of any other file.
  std::string damaged = text;
  damaged[text.size() / 2] = char(damaged[text.size() / 2] ^ 1);
  overwrite(*memory_, timing_path(1), damaged);
  const auto report = verify_step(*memory_, join("root", step_name(1)), VerifyLevel::kFiles, log_);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.findings[0].file.find("timing.json"), std::string::npos);
}

TEST_F(TimedSaves, WithoutLinksTheLeadersTimesAreThere) {
  make(3, asynchronous(10));
  Shares shares = Shares::even(3);
  network_->cut(0, 1);
  EXPECT_EQ(save(shares, 1), "");
  EXPECT_EQ(save(shares, 2), "");
  const Timing timing = parse_timing(read_all(*memory_, timing_path(2)), "file");
  EXPECT_EQ(timing.num_writers, 3);
  ASSERT_EQ(timing.ranks.size(), 1u);
  EXPECT_EQ(timing.ranks[0].rank, 0);
}

TEST_F(TimedSaves, AFailedWriteIsCountedAsRetry) {
  make(2, asynchronous(10));
  Shares shares = Shares::even(2);
  std::atomic<int> failures{2};
  fails_[1] = [&](std::string_view operation, const std::string& path) {
    return operation == "write" && path.find("shard-00002") != path.npos && failures-- > 0;
  };
  EXPECT_EQ(save(shares, 1), "");
  const Timing timing = parse_timing(read_all(*memory_, timing_path(1)), "file");
  EXPECT_EQ(timing.ranks[1].phases[size_t(Phase::kWrite)].retries, 2);
  EXPECT_EQ(timing.ranks[0].phases[size_t(Phase::kWrite)].retries, 0);
}

TEST_F(TimedSaves, ASlowReaderIsNamedAfterTheCommit) {
  make(4, asynchronous(1));
  Shares shares = Shares::even(4);
  EXPECT_EQ(save(shares, 1), "");
  EXPECT_TRUE((*this)[0].take_retired().empty());  // there was nothing to remove
  fails_[2] = [](std::string_view operation, const std::string& path) {
    if (operation == "open" && path.find("/shard-") != path.npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return false;
  };
  EXPECT_EQ(save(shares, 2), "");
  const auto retired = (*this)[0].take_retired();
  ASSERT_EQ(retired.size(), 1u);
  EXPECT_EQ(retired[0].step, 2);
  EXPECT_EQ(retired[0].bytes, StepReader(*memory_, join("root", step_name(2))).commit().bytes);
  EXPECT_GE(retired[0].verify_s, 0.1);
  EXPECT_GT(retired[0].remove_s, 0);
  ASSERT_EQ(retired[0].ranks.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(retired[0].ranks[size_t(rank)].rank, rank);
    EXPECT_EQ(retired[0].ranks[size_t(rank)].host, rank < 2 ? "n0" : "n1");
  }
  const std::vector<Outlier> outliers = find_outliers(retired[0].ranks);
  ASSERT_FALSE(outliers.empty());
  EXPECT_EQ(outliers[0].rank, 2);  // before any that the machine itself held up
  EXPECT_EQ(outliers[0].phase, Phase::kVerify);
}

TEST(TimingFile, IsOfEveryStepAndOfNoRequest) {
  const auto files = memory_files();
  Log log = quiet_log();
  Checkpointer checkpoints(*files, "root", direct(), log);
  TinyRun run;
  run.fill(1);
  SaveRequest request = run.request(1);
  checkpoints.save(request);
  EXPECT_EQ(parse_timing(read_all(*files, timing_path(1)), "file").ranks.size(), 1u);
  request.step = 2;
  request.extra.push_back({std::string(kTimingFile), "{}", true});
  EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { checkpoints.save(request); }),
            "two extra files of step 2 are named 'timing.json'");
}

}  // namespace
}  // namespace ashlar::checkpoint
