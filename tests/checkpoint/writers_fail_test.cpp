// One of several writers fails, lies or never comes: no step, a reason, and the next save works.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "ashlar/checkpoint/load/verify.h"
#include "tests/checkpoint/writers_test_util.h"

namespace ashlar::checkpoint {
namespace {

class Failing : public testing::Test {
 protected:
  // Three writers of one disk; the calls of the second are asked for by `fault_`.
  std::unique_ptr<FileSystem> disk_ = memory_files();
  std::function<bool(std::string_view, const std::string&)> fails_ =
      [](std::string_view, const std::string&) { return false; };
  std::unique_ptr<FileSystem> bad_ =
      faulty_files(*disk_, [this](int64_t, std::string_view operation, const std::string& path) {
        return fails_(operation, path) ? Fault::kIoError : Fault::kNone;
      });
  std::vector<std::string> lines_;
  std::mutex mutex_;
  Log log_{[this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  }};
  Shares shares_ = Shares::even(3);

  std::unique_ptr<Writers> make(double timeout_s = 60) {
    CheckpointOptions options = direct(1);
    options.part_timeout_s = timeout_s;
    return std::make_unique<Writers>(std::vector<FileSystem*>{disk_.get(), bad_.get(), disk_.get()},
                                     "root", options, log_);
  }
  // The save fails with such an error, leaves nothing, and the next one works.
  void expect_failure(ErrorKind kind, const std::string& expected, Writers& writers) {
    shares_.fill(1);
    const std::string message = message_of(kind, [&] { writers.save_in_turn(shares_, 1); });
    EXPECT_NE(message.find(expected), message.npos) << message;
    EXPECT_EQ(writers[0].consecutive_failures(), 1);
    EXPECT_FALSE(writers[0].newest());
    EXPECT_TRUE(committed_steps(*disk_, "root").empty());
    fails_ = [](std::string_view, const std::string&) { return false; };
    shares_.fill(2);
    writers.save_in_turn(shares_, 2);
    expect_step(*disk_, 2, 3);
    EXPECT_EQ(writers[0].consecutive_failures(), 0);
  }
};

TEST_F(Failing, OneWriterTellsTheLeaderWhy) {
  for (const auto& [operation, place, stage] :
       {std::tuple{"write", "optim/", "writing: "},
        {"sync", "model/", "syncing: "},
        {"create", "model/", "creating a file: "},
        {"sync_directory", "model", "writing the part: "},
        {"rename_new", "part-00002.bin", "writing the part: "}}) {
    SCOPED_TRACE(operation);
    disk_ = memory_files();
    bad_ = faulty_files(*disk_, [this](int64_t, std::string_view op, const std::string& path) {
      return fails_(op, path) ? Fault::kIoError : Fault::kNone;
    });
    const auto writers = make();
    fails_ = [operation, place](std::string_view op, const std::string& path) {
      return op == operation && path.find(place) != path.npos;
    };
    expect_failure(ErrorKind::kStorage,
                   fmt::format("step 1 is not saved: waiting for parts: writer 2 of 3: {}", stage),
                   *writers);
    EXPECT_EQ((*writers)[1].consecutive_failures(), 0);  // 1, and then the next save was good
  }
}

TEST_F(Failing, AFullDiskOfOneWriterIsReportedByTheLeader) {
  const auto writers = make();
  fails_ = [](std::string_view operation, const std::string&) { return operation == "free_bytes"; };
  expect_failure(ErrorKind::kStorage,
                 "step 1 is not saved: waiting for parts: writer 2 of 3: asking for free space",
                 *writers);
}

TEST_F(Failing, OneThatCannotEvenTellIsTimedOut) {
  const auto writers = make(0.3);
  fails_ = [](std::string_view operation, const std::string& path) {
    return operation == "write" && path.find("part-00002") != path.npos;
  };
  expect_failure(ErrorKind::kStorage, "writer 2 of 3 did not finish within 0.3 s", *writers);
  bool told = false;
  for (const std::string& line : lines_) told |= line.find("the leader was not told") != line.npos;
  EXPECT_TRUE(told);
}

TEST_F(Failing, OneThatNeverComesIsTimedOutAndALateOneIsCleanedUp) {
  const auto writers = make(0.05);
  shares_.fill(1);
  const Id attempt = random_id();
  const std::string message =
      message_of(ErrorKind::kStorage, [&] { (*writers)[0].save(shares_.request(0, 1, attempt)); });
  EXPECT_NE(message.find("writers 2, 3 of 3 did not finish within 0.05 s"), message.npos)
      << message;
  (*writers)[1].save(shares_.request(1, 1, attempt));
  const std::string late = join("root", tmp_name(1, to_text(attempt)));
  EXPECT_TRUE(disk_->stat(late));
  shares_.fill(2);
  writers->save_in_turn(shares_, 2);
  expect_step(*disk_, 2, 3);
  EXPECT_FALSE(disk_->stat(late));
}

TEST_F(Failing, ARefusalOfTheLeaderLeavesNothing) {
  const auto writers = make();
  shares_.fill(5);
  writers->save(shares_, 5);
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { writers->save(shares_, 5); })
                .find("already holds step 5"),
            std::string::npos);
  shares_.fill(6);
  writers->save(shares_, 6);
  expect_step(*disk_, 6, 3);
}

TEST_F(Failing, HolesOverlapsAndDisagreementsAreNamed) {
  struct Case {
    std::function<void(Shares&)> give;
    const char* message;
  };
  const auto box = [](State& state, const Box& box, DType dtype = DType::kF32) {
    state.add_box("w", dtype, {4, 4}, box, Role::kParameter);
  };
  const Case cases[] = {
      {[&](Shares& s) {
         box(s.model[1], {{0, 0}, {2, 4}});
         box(s.model[2], {{2, 0}, {2, 3}});
       },
       "step 1 is not saved: tensor 'w' [4, 4]: element [2, 3] is in no box"},
      {[&](Shares& s) {
         box(s.model[0], {{0, 0}, {3, 4}});
         box(s.model[2], {{2, 0}, {2, 4}});
       },
       "tensor 'w' [4, 4]: element [2, 0] is in boxes [0:3, 0:4] and [2:4, 0:4]"},
      {[&](Shares& s) {
         box(s.model[0], {{0, 0}, {4, 4}});
         box(s.model[1], {{0, 0}, {4, 4}});
       },
       "tensor 'w' [4, 4]: element [0, 0] is in boxes [0:4, 0:4] and [0:4, 0:4]"},
      {[&](Shares& s) {
         box(s.model[0], {{0, 0}, {2, 4}});
         box(s.model[1], {{2, 0}, {2, 4}}, DType::kBF16);
       },
       "part-00002.bin: tensor 'w' is BF16 [4, 4] in model but another writer says F32 [4, 4] in "
       "model"},
      {[&](Shares& s) {
         box(s.model[0], {{0, 0}, {2, 4}});
         box(s.optim[2], {{2, 0}, {2, 4}});
       },
       "part-00003.bin: tensor 'w' is F32 [4, 4] in optim but"}};
  for (const Case& c : cases) {
    disk_ = memory_files();
    bad_ = faulty_files(*disk_,
                        [](int64_t, std::string_view, const std::string&) { return Fault::kNone; });
    const auto writers = make();
    Shares wrong = Shares::even(3);
    c.give(wrong);
    wrong.fill(1);
    const std::string message = message_of(ErrorKind::kCorrupt, [&] { writers->save(wrong, 1); });
    EXPECT_NE(message.find(c.message), message.npos) << message;
    EXPECT_EQ(disk_->list("root"), std::vector<std::string>{".lease"});
    shares_.fill(2);
    writers->save(shares_, 2);
    expect_step(*disk_, 2, 3);
  }
}

TEST_F(Failing, NoDamageOfAPartIsTakenOver) {
  const auto writers = make();
  const std::string part = part_name(1);
  const auto save_with = [&](int64_t step, const std::function<void(std::string&)>& damage) {
    const Id attempt = random_id();
    shares_.fill(step);
    for (const int w : {1, 2}) (*writers)[w].save(shares_.request(w, step, attempt));
    const std::string path = join(join("root", tmp_name(step, to_text(attempt))), part);
    std::string text = read_all(*disk_, path);
    const size_t size = text.size();
    damage(text);
    overwrite(*disk_, path, text);
    const std::string message = message_of(
        ErrorKind::kCorrupt, [&] { (*writers)[0].save(shares_.request(0, step, attempt)); });
    EXPECT_NE(message.find(part + ": "), message.npos) << message;
    return size;
  };
  std::string earlier;
  const size_t size = save_with(1, [&](std::string& text) {
    earlier = text;
    text.pop_back();
  });
  for (size_t at = 0; at < size; at += 1 + size / 60)
    save_with(1, [&](std::string& text) { text[at] = char(text[at] ^ 4); });
  save_with(1, [&](std::string& text) { text = earlier; });  // whole, but of another attempt
  save_with(1, [&](std::string& text) { text.clear(); });
  writers->save(shares_, 1);
  expect_step(*disk_, 1, 3);
}

// A part that is whole, but says what its writer has no right to say.
TEST_F(Failing, NoPartSpeaksForAnother) {
  const auto writers = make();
  const auto refusal = [&](const std::function<void(Index&, const Index&)>& change) {
    const Id attempt = random_id();
    shares_.fill(1);
    for (const int w : {1, 2}) (*writers)[w].save(shares_.request(w, 1, attempt));
    const std::string directory = join("root", tmp_name(1, to_text(attempt)));
    const auto read = [&](int writer_rank) {
      const std::string path = join(directory, part_name(writer_rank));
      const std::string text = read_all(*disk_, path);
      return parse_index(std::as_bytes(std::span(text)), path);
    };
    Index part = read(2);
    change(part, read(1));
    const std::vector<std::byte> bytes = build_index(part);
    overwrite(*disk_, join(directory, part_name(2)),
              {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return message_of(ErrorKind::kCorrupt,
                      [&] { (*writers)[0].save(shares_.request(0, 1, attempt)); });
  };
  const auto expect = [&](const std::string& message, const char* expected) {
    EXPECT_NE(message.find(std::string("part-00003.bin: ") + expected), message.npos) << message;
  };
  expect(refusal([](Index& part, const Index&) { part.files[0].writer = 2; }), "file '");
  expect(refusal([](Index& part, const Index&) { part.files[0].component = Component::kExtra; }),
         "file '");
  expect(refusal([](Index& part, const Index& other) {
           part.files[0].path = other.files[0].path;
           part.files[0].size_bytes = other.files[0].size_bytes;
         }),
         "file '");
  expect(refusal([](Index& part, const Index&) { part.tensors[0].parent = 1; }), "tensor '");
  expect(refusal([](Index& part, const Index&) { part.attempt[0] ^= 1; }), "it is not a part of");
}

TEST_F(Failing, AFileThatTheLeaderDoesNotSeeWholeIsNamed) {
  const auto writers = make();
  const Id attempt = random_id();
  shares_.fill(1);
  for (const int w : {1, 2}) (*writers)[w].save(shares_.request(w, 1, attempt));
  const std::string directory = join("root", tmp_name(1, to_text(attempt)));
  const std::string path = "optim/" + disk_->list(directory + "/optim").back();
  overwrite(*disk_, join(directory, path), "short");
  const std::string message =
      message_of(ErrorKind::kStorage, [&] { (*writers)[0].save(shares_.request(0, 1, attempt)); });
  EXPECT_NE(message.find(path + ": it has 5 bytes here but writer 3 wrote "), message.npos)
      << message;
  EXPECT_EQ(disk_->list("root"), std::vector<std::string>{".lease"});
}

TEST_F(Failing, RetentionAndRecoveryWithTheFilesOfMany) {
  CheckpointOptions options = direct(2);
  {
    Writers writers(same(*disk_, 3), "root", options, log_);
    for (int64_t step = 1; step <= 4; ++step) {
      shares_.fill(step);
      writers.save(shares_, step);
    }
  }
  EXPECT_EQ(committed_steps(*disk_, "root").size(), 2u);
  options.keep = 10;  // so that the next step is not yet read back
  {
    Writers writers(same(*disk_, 3), "root", options, log_);
    EXPECT_EQ(writers[0].newest()->step, 4);
    shares_.fill(5);
    writers.save(shares_, 5);
  }
  // A byte in a file of the third writer, and what two killed writers left.
  const StepReader reader(*disk_, "root/" + step_name(5));
  const auto file = std::ranges::find_if(reader.index().files,
                                         [](const IndexFile& each) { return each.writer == 3; });
  const std::string path = join(reader.directory(), file->path);
  std::string text = read_all(*disk_, path);
  text.back() = char(text.back() ^ 1);
  overwrite(*disk_, path, text);
  disk_->make_directories("root/" + tmp_name(6, "left") + "/model");
  overwrite(*disk_, "root/" + tmp_name(6, "left") + "/" + part_name(1), "x");
  overwrite(*disk_, "root/.lease/trainer.json", "killed");
  Writers writers(same(*disk_, 3), "root", options, log_);
  const std::string newest = writers[0].unchecked()->directory;
  int damages = 0;
  for (int part = 0; part < 3; ++part)
    damages += !verify_step(*disk_, newest, VerifyLevel::kDeep, log_, {part, 3}).ok();
  EXPECT_EQ(damages, 1);
  writers[0].reject_newest("a flipped bit");
  EXPECT_EQ(writers[0].newest()->step, 4);
  EXPECT_EQ(writers[1].run_id(), "run");
  shares_.fill(5);
  writers.save(shares_, 5);
  expect_step(*disk_, 5, 3);
}

TEST_F(Failing, AnAttemptThatAFollowerBeganFirstIsNotCollected) {
  const auto writers = make();
  shares_.fill(1);
  const Id first = random_id(), second = random_id();
  for (const int w : {1, 2}) (*writers)[w].save(shares_.request(w, 1, first));
  shares_.fill(2);
  for (const int w : {1, 2}) (*writers)[w].save(shares_.request(w, 2, second));
  shares_.fill(1);
  (*writers)[0].save(shares_.request(0, 1, first));
  shares_.fill(2);
  (*writers)[0].save(shares_.request(0, 2, second));
  expect_step(*disk_, 2, 3);
}

// Without a channel the directory is looked at for parts, as long as a run goes on.
TEST_F(Failing, GivingUpEndsTheWaitForOneThatNeverComes) {
  CheckpointOptions options = direct(1);
  options.async = true;
  Writers writers(same(*disk_, 3), "root", options, log_);
  shares_.fill(1);
  const Id attempt = random_id();
  for (const int writer : {0, 1}) writers[writer].save(shares_.request(writer, 1, attempt));
  EXPECT_FALSE(writers[0].drain(0.2));
  const Clock::time_point start = Clock::now();
  writers[0].give_up();
  EXPECT_TRUE(writers[0].drain(30));
  EXPECT_LT(seconds_since(start), 5);
  const auto failures = writers[0].take_failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_STREQ(failures[0].error.what(),
               "step 1 is not saved: the run ends by an error and waits no longer");
  EXPECT_TRUE(committed_steps(*disk_, "root").empty());
}

}  // namespace
}  // namespace ashlar::checkpoint
