// Damage of every kind is found, named and walked past; roots are listed; one process trains.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/checkpoint/state_test_util.h"
#include "tests/support/temporary_directory.h"

namespace ashlar::checkpoint {
namespace {

class Root : public testing::Test {
 protected:
  void save_steps(int64_t count) {
    Checkpointer checkpoints(*files_, "root", direct(10), log_);
    for (int64_t step = 1; step <= count; ++step) {
      run_.fill(step);
      checkpoints.save(run_.request(step));
    }
  }
  std::string in_step(int64_t step, const std::string& name) {
    return "root/" + step_name(step) + "/" + name;
  }
  void flip(const std::string& path, size_t at) {
    std::string text = read_all(*files_, path);
    text[at] = char(text[at] ^ 0x10);
    overwrite(*files_, path, text);
  }
  VerifyReport verify(int64_t step, VerifyLevel level) {
    return verify_step(*files_, "root/" + step_name(step), level, log_);
  }
  std::unique_ptr<FileSystem> files_ = memory_files();
  std::vector<std::string> lines_;
  Log log_{[this](std::string_view line) { lines_.emplace_back(line); }};
  TinyRun run_;
};

TEST_F(Root, EveryClassOfBitRotIsFoundAndNamed) {
  save_steps(2);
  ASSERT_TRUE(verify(2, VerifyLevel::kDeep).ok());
  const StepReader reader(*files_, "root/" + step_name(2));
  std::vector<std::string> names{kCommitName, kManifestName, kIndexName};
  for (const IndexFile& file : reader.index().files)
    if (file.size_bytes > 0) names.push_back(file.path);
  int flips = 0;
  for (const std::string& name : names) {
    const std::string path = in_step(2, name), original = read_all(*files_, path);
    const size_t stride = std::max<size_t>(1, original.size() / 60);
    for (size_t at = 0; at < original.size(); at += stride, ++flips) {
      flip(path, at);
      const VerifyReport report = verify(2, VerifyLevel::kDeep);
      ASSERT_FALSE(report.ok()) << name << " byte " << at;
      const Finding& finding = report.findings.back();
      EXPECT_NE(report.findings.front().message.find(name), std::string::npos)
          << report.findings.front().message;
      if (name.find('/') != name.npos && name.starts_with("extra")) {
        EXPECT_EQ(finding.file, name);
      }
      bool chunk_named = name.find('/') == name.npos;  // COMMIT, manifest and index have no chunks
      for (const Finding& each : report.findings)
        chunk_named |= each.file == name && each.chunk == 0;
      EXPECT_TRUE(chunk_named) << name << " byte " << at;
      const Recovery recovery = find_newest(*files_, "root", VerifyLevel::kDeep, log_);
      ASSERT_EQ(recovery.newest->step, 1);
      ASSERT_EQ(recovery.rejected.size(), 1u);
      overwrite(*files_, path, original);
    }
  }
  EXPECT_GT(flips, 300);
  EXPECT_TRUE(verify(2, VerifyLevel::kDeep).ok());
}

TEST_F(Root, MissingAndCutFilesAreFoundWithoutReadingData) {
  save_steps(2);
  for (const std::string& name :
       {std::string("COMMIT"), std::string("index.bin"), std::string("manifest.json"),
        std::string("loader/streams-00000.safetensors"), std::string("extra/trainer.json")}) {
    const std::string path = in_step(2, name), original = read_all(*files_, path);
    for (const bool gone : {true, false}) {
      if (gone)
        files_->remove(path);
      else
        overwrite(*files_, path, original.substr(0, original.size() - 1));
      EXPECT_FALSE(verify(2, VerifyLevel::kQuick).ok()) << name;
      EXPECT_EQ(find_newest(*files_, "root", VerifyLevel::kQuick, log_).newest->step, 1);
      overwrite(*files_, path, original);
    }
  }
}

TEST_F(Root, FilesOfAnotherSaveAreRefused) {
  save_steps(2);
  // Same names, same sizes, other bytes: only identity tells.
  const std::string name = "model/shard-00001-model-00001-of-00001.safetensors";
  overwrite(*files_, in_step(2, name), read_all(*files_, in_step(1, name)));
  EXPECT_TRUE(verify(2, VerifyLevel::kQuick).ok());
  const VerifyReport report = verify(2, VerifyLevel::kFiles);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.findings[0].file, name);
  overwrite(*files_, in_step(2, "index.bin"), read_all(*files_, in_step(1, "index.bin")));
  EXPECT_FALSE(verify(2, VerifyLevel::kQuick).ok());
}

TEST_F(Root, WalksBackRemembersAndMakesWayForTheStep) {
  save_steps(3);
  flip(in_step(3, kManifestName), 40);
  {
    Checkpointer checkpoints(*files_, "root", direct(10), log_);
    EXPECT_EQ(checkpoints.newest()->step, 2);
    EXPECT_NE(fmt::format("{}", fmt::join(lines_, "\n")).find("step-000000000003 is not usable: "),
              std::string::npos);
    EXPECT_EQ(files_->list("root/.bad").size(), 2u);  // the verdict, and the step itself
    run_.fill(3);
    checkpoints.save(run_.request(3));  // reached again
    expect_holds(*files_, checkpoints.newest()->directory, 3);
  }
  // Damage that only reading shows.
  flip(in_step(3, "model/shard-00001-model-00001-of-00001.safetensors"), 4100);
  Checkpointer checkpoints(*files_, "root", direct(10), log_);
  EXPECT_EQ(checkpoints.newest()->step, 3);
  TinyRun loaded;
  const std::string reason =
      message_of(ErrorKind::kCorrupt, [&] { checkpoints.open_newest().load(loaded.all()); });
  EXPECT_NE(reason.find("chunk 0 (bytes 0 to "), reason.npos) << reason;
  checkpoints.reject_newest(reason);
  EXPECT_EQ(checkpoints.newest()->step, 2);
  checkpoints.open_newest().load(loaded.all());
  run_.fill(2);
  EXPECT_EQ(loaded.bytes(), run_.bytes());
}

TEST_F(Root, NoSurvivorIsAnErrorAndAnEmptyRootIsNot) {
  EXPECT_FALSE(find_newest(*files_, "root", VerifyLevel::kQuick, log_).newest);
  EXPECT_FALSE(is_checkpoint(*files_, "root"));
  save_steps(2);
  EXPECT_TRUE(is_checkpoint(*files_, "root"));
  EXPECT_TRUE(is_checkpoint(*files_, "root/" + step_name(2)));
  for (const int64_t step : {1, 2}) flip(in_step(step, kCommitName), 20);
  for (int start = 0; start < 2;
       ++start) {  // the verdicts of the first start do not hide the error
    const std::string message =
        message_of(ErrorKind::kCorrupt, [&] { Checkpointer(*files_, "root", direct(), log_); });
    EXPECT_NE(message.find("root holds 2 checkpoint steps but none is good"), message.npos)
        << message;
  }
  EXPECT_EQ(message_of(ErrorKind::kCorrupt, [&] { open_checkpoint(*files_, "nowhere", log_); }),
            "nowhere is neither a checkpoint step (no COMMIT) nor a directory of steps");
}

// COMMIT vouches for an index, or a manifest, that is another save's.
TEST_F(Root, MetadataOfTwoSavesAreNoStep) {
  save_steps(2);
  const std::string path = in_step(2, kCommitName), whole = read_all(*files_, path);
  for (const char* name : {kIndexName, kManifestName}) {
    const std::string original = read_all(*files_, in_step(2, name));
    overwrite(*files_, in_step(2, name), read_all(*files_, in_step(1, name)));
    Commit commit = parse_commit(whole, path);
    (name == kIndexName ? commit.index : commit.manifest) =
        digest_of(read_all(*files_, in_step(1, name)));
    overwrite(*files_, path, build_commit(commit));
    const VerifyReport report = verify(2, VerifyLevel::kQuick);
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.findings[0].message.find("are of different saves"), std::string::npos)
        << report.findings[0].message;
    overwrite(*files_, in_step(2, name), original);
    overwrite(*files_, path, whole);
  }
  EXPECT_TRUE(verify(2, VerifyLevel::kDeep).ok());
}

// Damage that a run found while it loaded: no check finds it again before the step is set aside.
TEST_F(Root, AVerdictHoldsForEveryone) {
  save_steps(2);
  as_holder(*files_, "root", [&](Fence& fence) {
    record_bad(fence, committed_steps(*files_, "root").back(), "not a model");
  });
  for (const VerifyLevel level : {VerifyLevel::kQuick, VerifyLevel::kDeep})
    EXPECT_TRUE(list_steps(*files_, "root", level, log_)[0].recovery_choice);
  EXPECT_EQ(open_checkpoint(*files_, "root", log_).step(), 1);
  EXPECT_EQ(Checkpointer(*files_, "root", direct(10), log_).newest()->step, 1);
}

TEST_F(Root, AStepUnderAnothersNameIsNone) {
  save_steps(2);
  files_->rename_new("root/" + step_name(2), "root/" + step_name(7));
  EXPECT_EQ(open_checkpoint(*files_, "root", log_).step(), 1);
  EXPECT_NE(list_steps(*files_, "root", VerifyLevel::kQuick, log_)[1].problem.find(
                "step-000000000007: COMMIT is of step 2, but its directory is named as step 7"),
            std::string::npos);
}

// Twice the same step, of which not even COMMIT tells whose it was.
TEST_F(Root, AllThatIsSetAsideIsKept) {
  for (int start = 0; start < 2; ++start) {
    {
      Checkpointer checkpoints(*files_, "root", direct(10), log_);
      if (start == 0) checkpoints.save(run_.request(1));
      checkpoints.save(run_.request(2));
    }
    flip(in_step(2, kCommitName), 9);
  }
  EXPECT_EQ(Checkpointer(*files_, "root", direct(10), log_).newest()->step, 1);
  int kept = 0;
  for (const StepInfo& info : list_steps(*files_, "root", VerifyLevel::kQuick, log_))
    kept += info.state == StepState::kBad;
  EXPECT_EQ(kept, 2);
}

TEST_F(Root, ReadersChangeNothing) {
  save_steps(2);
  flip(in_step(2, kIndexName), 100);
  const auto before = files_->list("root");
  EXPECT_EQ(open_checkpoint(*files_, "root", log_).step(), 1);
  EXPECT_EQ(list_steps(*files_, "root", VerifyLevel::kQuick, log_).size(), 2u);
  EXPECT_EQ(files_->list("root"), before);
}

TEST_F(Root, ListsEverythingInIt) {
  save_steps(3);
  flip(in_step(3, kCommitName), 9);
  files_->make_directories("root/" + tmp_name(4, "0123"));
  files_->make_directories("root/.trash-1");
  const auto infos = list_steps(*files_, "root", VerifyLevel::kQuick, log_);
  ASSERT_EQ(infos.size(), 5u);
  EXPECT_EQ(infos[0].verdict, "candidate");
  EXPECT_GT(infos[0].bytes, 0);
  EXPECT_EQ(infos[0].files, 7);
  EXPECT_TRUE(infos[1].recovery_choice);
  EXPECT_FALSE(infos[0].recovery_choice);
  EXPECT_EQ(infos[2].verdict, "bad");
  EXPECT_NE(infos[2].problem.find("COMMIT"), std::string::npos);
  EXPECT_EQ(infos[3].state, StepState::kTmp);
  EXPECT_EQ(infos[3].step, 4);
  EXPECT_EQ(infos[4].state, StepState::kTrash);
  Checkpointer checkpoints(*files_, "root", direct(), log_);  // collects, sets aside
  const auto after = list_steps(*files_, "root", VerifyLevel::kQuick, log_);
  ASSERT_EQ(after.size(), 3u);
  EXPECT_EQ(after[2].state, StepState::kBad);
  EXPECT_EQ(after[2].step, 3);
}

TEST_F(Root, TheRunGoesOnUnderItsName) {
  {
    CheckpointOptions options = direct();
    options.run_id = "first";
    Checkpointer checkpoints(*files_, "root", options, log_);
    run_.fill(1);
    checkpoints.save(run_.request(1));
  }
  CheckpointOptions options = direct();
  options.run_id.clear();
  EXPECT_EQ(Checkpointer(*files_, "root", options, log_).run_id(), "first");
  EXPECT_EQ(Checkpointer(*files_, "other", options, log_).run_id().size(), 32u);
}

TEST(Lease, OneProcessTrainsAndAKilledOneDoesNotBlock) {
  const testing_support::TemporaryDirectory directory;
  const auto files = posix_files();
  Log log = quiet_log();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Checkpointer checkpoints(*files, directory.path(), direct(), log);
    TinyRun run;
    run.fill(1);
    checkpoints.save(run.request(1));
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string message = message_of(
      ErrorKind::kConfig, [&] { Checkpointer(*files, directory.path(), direct(), log); });
  EXPECT_NE(message.find(fmt::format("is in use: process {} on ", child)), message.npos) << message;
  EXPECT_EQ(open_checkpoint(*files, directory.path(), log).step(), 1);  // reading is free
  kill(child, SIGKILL);
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, id_t(child), &ended, WEXITED | WNOWAIT), 0);  // it stays in /proc
  Checkpointer checkpoints(*files, directory.path(), direct(), log);
  ASSERT_EQ(checkpoints.newest()->step, 1);
  expect_holds(*files, checkpoints.newest()->directory, 1);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(Lease, IsGivenBackAndATornOneIsTakenOver) {
  const auto files = memory_files();
  Log log = quiet_log();
  { Checkpointer checkpoints(*files, "root", direct(), log); }
  EXPECT_TRUE(files->list("root/.lease").empty());
  overwrite(*files, "root/.lease/trainer.json", "{\"host\"");
  { Checkpointer checkpoints(*files, "root", direct(), log); }
  EXPECT_TRUE(files->list("root/.lease").empty());
}

// A holder that slept past the expiry of its lease must not save beside the one that came after it.
TEST(Lease, WhoLostItCommitsNothingAndLeavesItToTheNewHolder) {
  const auto files = memory_files();
  Log log = quiet_log();
  const std::string path = "root/.lease/trainer.json";
  const std::string other =
      R"({"host":"far","boot":"b","pid_namespace":"n","pid":7,"started":1,"token":"t"})";
  {
    Checkpointer checkpoints(*files, "root", direct(), log);
    TinyRun run;
    run.fill(1);
    checkpoints.save(run.request(1));
    overwrite(*files, path, other);
    run.fill(2);
    EXPECT_EQ(message_of(ErrorKind::kConfig, [&] { checkpoints.save(run.request(2)); }),
              "step 2 is not saved: before its commit: root was taken over by process 7 on far, "
              "because this process did not renew its lease for 60 s; stop one of the two");
    EXPECT_EQ(checkpoints.newest()->step, 1);
    files->remove(path);  // by hand: the lease is made again
    checkpoints.save(run.request(3));
    EXPECT_EQ(checkpoints.newest()->step, 3);
    overwrite(*files, path, other);
  }
  EXPECT_EQ(read_all(*files, path), other);
}

// A clean end is trusted; after a kill the writers are to read the newest step before it is used,
// unless it was found good before.
TEST(Lease, AfterAKillTheNewestStepIsToBeReadWhole) {
  const auto files = memory_files();
  Log log = quiet_log();
  {
    Checkpointer checkpoints(*files, "root", direct(), log);
    TinyRun run;
    for (int64_t step = 1; step <= 3; ++step) {
      run.fill(step);
      checkpoints.save(run.request(step));
    }
  }
  const auto open = [&] { return std::make_unique<Checkpointer>(*files, "root", direct(), log); };
  EXPECT_EQ(open()->unchecked(), std::nullopt);
  const auto kill = [&] { overwrite(*files, "root/.lease/trainer.json", "killed"); };
  kill();
  {
    const auto checkpoints = open();
    ASSERT_EQ(checkpoints->unchecked()->step, 3);
    checkpoints->reject_newest("a flipped bit");
    EXPECT_EQ(checkpoints->newest()->step, 2);
    EXPECT_EQ(checkpoints->unchecked(), std::nullopt);  // it was read whole to take its place
  }
  kill();
  open()->accept_newest();
  kill();
  EXPECT_EQ(open()->unchecked(), std::nullopt);
}

// Sizes that a file states are held against the limits before memory is taken for them.
TEST_F(Root, SizesPastTheLimitsAreRefusedBeforeTheyAreRead) {
  save_steps(1);
  const std::string path = join("root/" + step_name(1), kCommitName);
  Commit commit = parse_commit(read_all(*files_, path), path);
  commit.index.size_bytes = int64_t(1) << 45;
  overwrite(*files_, path, build_commit(commit));
  EXPECT_NE(message_of(ErrorKind::kCorrupt, [&] { StepReader(*files_, "root/" + step_name(1)); })
                .find("the index has 35184372088832 bytes; at most 1073741824 are allowed"),
            std::string::npos);
  Index index;
  index.files = {{.path = "extra/x",
                  .component = Component::kExtra,
                  .kind = FileKind::kBlob,
                  .size_bytes = kMaxBlobBytes + 1,
                  .chunk_crcs = std::vector<uint32_t>(65)}};
  index.blobs = {{.name = "x", .length = kMaxBlobBytes + 1}};
  EXPECT_NE(message_of(ErrorKind::kConfig, [&] { build_index(index); }).find("at most 268435456"),
            std::string::npos);
}

}  // namespace
}  // namespace ashlar::checkpoint
