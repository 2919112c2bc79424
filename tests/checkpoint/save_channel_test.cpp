// Several writers with a control channel: whole steps, who failed and why, who is slow, reading
// back by others, and the directory where the channel breaks.
#include "ashlar/checkpoint/writers/save_channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "ashlar/control/tcp_links.h"
#include "tests/checkpoint/channels_test_util.h"

namespace ashlar::checkpoint {
namespace {

TEST_F(Channels, OneStepFromAllWithoutPartsInTheDirectory) {
  make(9);
  Shares shares = Shares::even(9);
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_EQ(save(shares, step), "");
    expect_step(*memory_, step, 9);
    const auto stats = (*this)[0].take_stats();
    ASSERT_EQ(stats.size(), 1u);
    ASSERT_EQ(stats[0].ranks.size(), 9u);
    for (int rank = 0; rank < 9; ++rank) {
      EXPECT_EQ(stats[0].ranks[size_t(rank)].rank, rank);
      EXPECT_EQ(stats[0].ranks[size_t(rank)].host, "n" + std::to_string(rank / 2));
      const PhaseTimes& phases = stats[0].ranks[size_t(rank)].phases;
      EXPECT_GT(phases[size_t(Phase::kWrite)].bytes, 0);
      EXPECT_EQ(phases[size_t(Phase::kWrite)].bytes, phases[size_t(Phase::kCopy)].bytes);
    }
  }
  EXPECT_EQ(parts_in_directory(), 0);
  EXPECT_EQ(committed_steps(*memory_, "root").size(), 3u);  // the fourth was read back
  const std::vector<StepRef> steps = committed_steps(*memory_, "root");
  EXPECT_TRUE(is_verified(*memory_, "root", steps.back()));
}

TEST_F(Channels, AFollowerKnowsTheResult) {
  make(3);
  Shares shares = Shares::even(3);
  fails_[0] = [](std::string_view operation, const std::string& path) {
    return operation == "create" && path.ends_with("index.bin");
  };
  EXPECT_NE(save(shares, 1).find("step 1 is not saved: committing: create"), std::string::npos);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ((*this)[rank].consecutive_failures(), 1);
  fails_[0] = nullptr;
  EXPECT_EQ(save(shares, 2), "");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ((*this)[rank].consecutive_failures(), 0);
  expect_step(*memory_, 2, 3);
}

TEST_F(Channels, AFollowersFailureIsTheLeaders) {
  for (const auto& [operation, place, stage] : {std::tuple{"write", "model/", "writing: "},
                                                {"sync", "optim/", "syncing: "},
                                                {"create", "model/", "creating a file: "},
                                                {"stat", "model/shard-00006", "syncing: "}}) {
    SCOPED_TRACE(operation);
    if (size() == 0) make(7);
    Shares shares = Shares::even(7);
    fails_[5] = [operation, place](std::string_view op, const std::string& path) {
      return op == operation && path.find(place) != path.npos;
    };
    static int64_t step = 0;
    ++step;
    const std::string expected =
        fmt::format("step {} is not saved: waiting for parts: writer 6 of 7: {}", step, stage);
    const std::string message = save(shares, step);
    EXPECT_NE(message.find(expected), message.npos) << message;
    EXPECT_EQ((*this)[3].consecutive_failures(), 1);
    fails_[5] = nullptr;
    ++step;
    EXPECT_EQ(save(shares, step), "");
    expect_step(*memory_, step, 7);
  }
  EXPECT_EQ(parts_in_directory(), 0);
}

TEST_F(Channels, WritersThatShareNoDirectoryAreFoundOut) {
  make(3);
  const auto elsewhere = memory_files();
  CheckpointOptions options = asynchronous();
  options.writer_rank = 2;
  options.num_writers = 3;
  options.channel = channels_[2].get();
  checkpointers_[2].reset();
  elsewhere->make_directories("root");
  checkpointers_[2] = std::make_unique<Checkpointer>(*elsewhere, "root", options, log_);
  Shares shares = Shares::even(3);
  const std::string message = save(shares, 1);
  EXPECT_NE(message.find("what writer 3 wrote is not seen by writer "), message.npos) << message;
  checkpointers_[2].reset();
}

TEST_F(Channels, AMissingTensorAndAHoleAreNamed) {
  make(3);
  for (const bool hole : {true, false}) {
    Shares wrong = Shares::even(3);
    State extra;
    extra.add_box("w", DType::kF32, {4, 4}, {{0, 0}, {4, 4}}, Role::kParameter);
    if (hole) wrong.model[1].add_box("w", DType::kF32, {4, 4}, {{0, 0}, {2, 4}}, Role::kParameter);
    std::vector<LogicalTensor> whole;
    for (State* state : {&wrong.whole.model, &wrong.whole.optim})
      for (const Piece& piece : state->pieces()) whole.push_back(piece.logical);
    whole.push_back(extra.pieces()[0].logical);
    wrong.fill(1);
    const Id attempt = random_id();
    for (int rank = 0; rank < 3; ++rank) {
      SaveRequest request = wrong.request(rank, 1, attempt);
      if (rank == 0) request.whole = whole;
      (*this)[rank].save(request);
    }
    const std::string message = settle();
    EXPECT_NE(message.find(hole ? "tensor 'w' [4, 4]: element [2, 0] is in no box"
                                : "tensor 'w' [4, 4]: no writer has it"),
              message.npos)
        << message;
  }
  Shares shares = Shares::even(3);
  EXPECT_EQ(save(shares, 2), "");
  expect_step(*memory_, 2, 3);
}

TEST_F(Channels, ASlowRankIsNamedAndTimedOut) {
  SaveChannelOptions quick;
  quick.tell_after_s = {0.2, 0.4};
  quick.tree.heartbeat_s = 0.05;
  CheckpointOptions options = asynchronous();
  options.part_timeout_s = 1;
  make(5, options, 2, quick);
  std::atomic<bool> go{false};
  fails_[4] = [&](std::string_view operation, const std::string& path) {
    while (operation == "sync" && path.find("shard-00005") != path.npos && !go)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return false;
  };
  Shares shares = Shares::even(5);
  shares.fill(1);
  const Id attempt = random_id();
  for (int rank = 0; rank < 5; ++rank) (*this)[rank].save(shares.request(rank, 1, attempt));
  EXPECT_TRUE((*this)[0].drain(30));
  const auto failures = (*this)[0].take_failures();
  ASSERT_EQ(failures.size(), 1u);
  const std::string message = failures[0].error.what();
  EXPECT_NE(message.find("step 1 is not saved: waiting for parts: rank 4 on n2: "), message.npos)
      << message;
  EXPECT_NE(message.find("; no progress for 1 s"), message.npos) << message;
  EXPECT_TRUE(logged("step 1: waiting for rank 4 on n2: "));
  go = true;
  settle();
  fails_[4] = nullptr;
  EXPECT_EQ(save(shares, 2), "");
  expect_step(*memory_, 2, 5);
}

TEST_F(Channels, DamageIsFoundByAnotherRankAndSetAside) {
  make(4, asynchronous(1));
  Shares shares = Shares::even(4);
  EXPECT_EQ(save(shares, 1), "");
  // Another rank, rank 3, reads back what writer 2 wrote.
  std::atomic<bool> bad{false};
  std::atomic<int> reader{-1};
  for (int rank = 0; rank < 4; ++rank)
    fails_[size_t(rank)] = [&, rank](std::string_view operation, const std::string& path) {
      if (operation == "open" && path.find("step-000000000002/model/shard-00002") != path.npos) {
        reader = rank;
        if (!bad.exchange(true)) {
          std::string text = read_all(*memory_, path);
          text.back() = char(text.back() ^ 1);
          overwrite(*memory_, path, text);
        }
      }
      return false;
    };
  const std::string message = save(shares, 2);
  EXPECT_NE(message.find("step 2 does not read back as it was written: "), message.npos) << message;
  EXPECT_NE(message.find("model/shard-00002"), message.npos) << message;
  EXPECT_EQ(reader, 3);
  EXPECT_EQ((*this)[0].newest()->step, 1);  // still there
  for (Fails& fails : fails_) fails = nullptr;
  EXPECT_EQ(save(shares, 3), "");
  expect_step(*memory_, 3, 4);
}

TEST_F(Channels, NoRankReadsBackWhatItWrote) {
  make(6, asynchronous(1));
  std::mutex mutex;
  std::map<int, std::set<std::string>> read;
  for (int rank = 0; rank < 6; ++rank)
    fails_[size_t(rank)] = [&, rank](std::string_view operation, const std::string& path) {
      if (operation == "open" && path.find("/shard-") != path.npos) {
        const std::lock_guard lock(mutex);
        read[rank].insert(path.substr(path.find("/shard-") + 1, 11));
      }
      return false;
    };
  Shares shares = Shares::even(6);
  EXPECT_EQ(save(shares, 1), "");
  EXPECT_EQ(save(shares, 2), "");
  ASSERT_EQ(read.size(), 6u);
  for (const auto& [rank, files] : read)
    EXPECT_EQ(files, std::set<std::string>{fmt::format("shard-{:05}", (rank + 3) % 6 + 1)});
}

// A link is cut at every moment of a save that a file call marks: the step is whole, or failed with
// a reason; what comes after goes through the directory.
TEST_F(Channels, ABrokenLinkTurnsSavesToTheDirectory) {
  make(6, asynchronous(10));
  Shares shares = Shares::even(6);
  EXPECT_EQ(save(shares, 1), "");
  EXPECT_EQ(parts_in_directory(), 0);
  network_->cut(0, tree_->children[0].back());
  EXPECT_EQ(save(shares, 2), "");
  expect_step(*memory_, 2, 6);
  EXPECT_EQ(save(shares, 3), "");
  expect_step(*memory_, 3, 6);
  EXPECT_EQ(parts_in_directory(), 10);
  EXPECT_TRUE(logged("the control channel of checkpoints is broken: rank "));
  int told = 0;
  for (const std::string& line : lines_) told += line.find("channel of checkpoints") != line.npos;
  EXPECT_EQ(told, 1);
}

class CutAt : public Channels, public testing::WithParamInterface<int> {};

TEST_P(CutAt, AnyCallOfASaveLeavesAWholeStepOrNone) {
  CheckpointOptions options = asynchronous(10);
  options.part_timeout_s = 20;
  make(5, options);
  std::atomic<int> calls{0};
  const int where = GetParam();
  for (int rank = 0; rank < 5; ++rank)
    fails_[size_t(rank)] = [&, where](std::string_view, const std::string&) {
      if (++calls == where) network_->cut(0, tree_->children[0].front());
      return false;
    };
  Shares shares = Shares::even(5);
  const std::string message = save(shares, 1);
  if (message.empty())
    expect_step(*memory_, 1, 5);
  else
    EXPECT_TRUE(committed_steps(*memory_, "root").empty()) << message;
  for (Fails& fails : fails_) fails = nullptr;
  EXPECT_EQ(save(shares, 2), "");
  expect_holds(*memory_, "root/" + step_name(2), 2);
}
INSTANTIATE_TEST_SUITE_P(Calls, CutAt, testing::Range(1, 260, 7));

// The same over TCP, as a run makes it.
TEST(TcpChannel, CarriesSaves) {
  constexpr int kRanks = 5;
  const auto files = memory_files();
  Log log = quiet_log();
  std::vector<control::Listener> listeners;
  std::vector<control::Address> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    listeners.emplace_back(control::Reach::kMachine);
    all.push_back(control::parse_address(listeners.back().address()));
  }
  const auto tree =
      std::make_shared<const control::Tree>(control::make_tree(control::nodes_of(all)));
  std::vector<std::unique_ptr<SaveChannel>> channels;
  std::vector<std::unique_ptr<Checkpointer>> checkpointers;
  for (int rank = 0; rank < kRanks; ++rank) {
    channels.push_back(std::make_unique<SaveChannel>(tree, rank, "host", log));
    channels.back()->start([&](control::LinkUser& user) {
      return std::make_unique<control::TcpLinks>(std::move(listeners[size_t(rank)]),
                                                 control::Epoch{1}, rank, all, *tree, user,
                                                 control::LinkOptions{}, log);
    });
    CheckpointOptions options = direct(1);
    options.async = true;
    options.writer_rank = rank;
    options.num_writers = kRanks;
    options.channel = channels.back().get();
    checkpointers.push_back(std::make_unique<Checkpointer>(*files, "root", options, log));
  }
  Shares shares = Shares::even(kRanks);
  for (int64_t step = 1; step <= 3; ++step) {
    shares.fill(step);
    const Id attempt = random_id();
    for (int rank = 0; rank < kRanks; ++rank)
      checkpointers[size_t(rank)]->save(shares.request(rank, step, attempt));
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(checkpointers[size_t(rank)]->drain(30));
    EXPECT_TRUE(checkpointers[0]->take_failures().empty());
    expect_step(*files, step, kRanks);
  }
  for (const auto& channel : channels) EXPECT_FALSE(channel->broken());
  checkpointers.clear();
}

// A run that ends by an error waits for no rank that stands still: saves are given up in a moment,
// what is committed stays, and nothing becomes a step that some rank did not write.
struct Standing {
  int rank;               // that stands still
  const char* operation;  // in which call
  bool committed;         // by then
};
void PrintTo(const Standing& standing, std::ostream* out) {
  *out << "rank " << standing.rank << " in " << standing.operation;
}

class GivingUp : public Channels, public testing::WithParamInterface<Standing> {};

TEST_P(GivingUp, EndsAllWaitsForARankThatStandsStill) {
  const Standing standing = GetParam();
  make(4, asynchronous(1));
  Shares shares = Shares::even(4);
  ASSERT_EQ(save(shares, 1), "");
  std::atomic<bool> go{false}, stands{false};
  fails_[size_t(standing.rank)] = [&](std::string_view operation, const std::string& path) {
    if (operation != standing.operation || path.find("step-000000000002") == path.npos)
      return false;
    stands = true;
    while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return false;
  };
  shares.fill(2);
  const Id attempt = random_id();
  for (int rank = 0; rank < 4; ++rank) (*this)[rank].save(shares.request(rank, 2, attempt));
  while (!stands) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE((*this)[0].drain(0.2));
  const Clock::time_point start = Clock::now();
  for (const auto& each : checkpointers_) each->give_up();
  for (int rank = 0; rank < 4; ++rank)
    if (rank != standing.rank) checkpointers_[size_t(rank)].reset();
  EXPECT_LT(seconds_since(start), 5);
  go = true;
  checkpointers_.clear();
  const auto steps = committed_steps(*memory_, "root");
  ASSERT_EQ(steps.size(), standing.committed ? 2u : 1u);
  for (const StepRef& ref : steps) expect_holds(*memory_, ref.directory, ref.step);
  for (const std::string& name : memory_->list("root"))
    EXPECT_FALSE(name.starts_with(kTmpPrefix)) << name;
  if (!standing.committed) {
    EXPECT_TRUE(logged("step 2 is not saved: ") && logged("waits no longer"));
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, GivingUp,
                         testing::Values(Standing{0, "sync", false}, Standing{0, "create", false},
                                         Standing{1, "sync", false}, Standing{3, "create", false},
                                         Standing{3, "sync", false}, Standing{2, "open", true}));

}  // namespace
}  // namespace ashlar::checkpoint
