// Several writers, one step: whole, and in any boxes.
#include <gtest/gtest.h>

#include <thread>

#include "tests/checkpoint/writers_test_util.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::checkpoint {
namespace {

TEST(Writers, OneStepFromAnyNumberOfThem) {
  for (const int num_writers : {1, 2, 3, 5})
    for (const bool async : {false, true}) {
      SCOPED_TRACE(fmt::format("{} writers, async {}", num_writers, async));
      const auto files = memory_files();
      Log log = quiet_log();
      CheckpointOptions options = direct();
      options.async = async;
      Writers writers(same(*files, num_writers), "root", options, log);
      Shares shares = Shares::even(num_writers);
      for (int64_t step = 1; step <= 2; ++step) {
        shares.fill(step);
        writers.save(shares, step);
        expect_step(*files, step, num_writers);
        EXPECT_EQ(writers[0].newest()->step, step);
        const auto stats = writers[0].take_stats();
        ASSERT_EQ(stats.size(), 1u);
        EXPECT_EQ(stats[0].bytes, StepReader(*files, stats[0].directory).commit().bytes);
      }
      for (int w = 1; w < num_writers; ++w) {
        EXPECT_TRUE(writers[w].take_stats().empty());  // it keeps nothing of what it wrote
        EXPECT_FALSE(writers[w].newest());
      }
    }
}

TEST(Writers, OnTheMachinesFiles) {
  const testing_support::TemporaryDirectory directory;
  const auto files = posix_files();
  Log log = quiet_log();
  const std::string root = join(directory.path(), "a/b");
  Writers writers(same(*files, 3), root, direct(1), log);
  Shares shares = Shares::even(3);
  for (int64_t step = 1; step <= 3; ++step) {
    shares.fill(step);
    writers.save(shares, step);
    expect_holds(*files, join(root, step_name(step)), step);
  }
  EXPECT_EQ(committed_steps(*files, root).size(), 2u);  // the newest, and the newest verified
}

// Boxes by chance over n writers load into other boxes over m.
TEST(Writers, ReshardBetweenNumbersOfThem) {
  Draw draw(5, "reshard");
  for (const int from : {1, 2, 3, 5})
    for (const int to : {1, 2, 3, 5}) {
      SCOPED_TRACE(fmt::format("{} to {}", from, to));
      const auto files = memory_files();
      Log log = quiet_log();
      Shares shares = Shares::random(from, draw);
      Draw again = draw;
      Shares wanted = Shares::random(to, draw), expected = Shares::random(to, again);
      shares.fill(7);
      expected.fill(7);
      {
        Writers writers(same(*files, from), "root", direct(), log);
        writers.save(shares, 7);
      }
      expect_step(*files, 7, from);
      const StepReader reader(*files, join("root", step_name(7)));
      LoadOptions options;
      options.allow_unexpected = {"*"};
      for (int w = 0; w < to; ++w) {
        wanted.model[size_t(w)].clear();
        wanted.optim[size_t(w)].clear();
        reader.load(wanted.pieces(w), options);
        EXPECT_EQ(wanted.model[size_t(w)].bytes(), expected.model[size_t(w)].bytes());
        EXPECT_EQ(wanted.optim[size_t(w)].bytes(), expected.optim[size_t(w)].bytes());
      }
    }
}

TEST(Writers, MayHaveNothing) {
  const auto files = memory_files();
  Log log = quiet_log();
  Writers writers(same(*files, 5), "root", direct(), log);
  Shares shares(5);  // writer 4 has the model, writer 2 the states, the others nothing
  shares.for_each_tensor([&](const Piece& piece, std::vector<State>& states) {
    shares.give(piece, piece.box, states[&states == &shares.model ? 3 : 1]);
  });
  shares.fill(1);
  writers.save(shares, 1);
  expect_step(*files, 1, 5);
  EXPECT_EQ(StepReader(*files, "root/" + step_name(1)).manifest().components.at("model").files, 1);
}

// Each rank trains on: its tensors change the moment that its before_update() returns.
TEST(Writers, StoreTheBytesOfTheSavedStepInTheBackground) {
  constexpr int kWriters = 3, kSteps = 6;
  const auto files = memory_files();
  Log log = quiet_log();
  CheckpointOptions options;
  options.keep = 100;
  {
    Writers writers(same(*files, kWriters), "root", options, log);
    std::vector<Id> attempts;
    for (int step = 0; step <= kSteps; ++step) attempts.push_back(random_id());
    const auto train = [&](int w) {
      Shares shares = Shares::even(kWriters);
      for (int64_t step = 1; step <= kSteps; ++step) {
        writers[w].before_update();
        shares.fill(step);
        writers[w].save(shares.request(w, step, attempts[size_t(step)]));
      }
      writers[w].wait();
      shares.fill(kSteps + 1);
    };
    std::vector<std::thread> ranks;
    for (int w = 0; w < kWriters; ++w) ranks.emplace_back(train, w);
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(writers[0].take_stats().size(), size_t(kSteps));
  }
  for (int64_t step = 1; step <= kSteps; ++step) expect_step(*files, step, kWriters);
}

}  // namespace
}  // namespace ashlar::checkpoint
