// Full disks, limits and broken machines while training.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/spec/recipe.h"
#include "ashlar/train/start.h"
#include "tests/integration/support.h"

namespace ashlar::integration {
namespace {

namespace fs = std::filesystem;

// One bit of one token: the id stays in the vocabulary, so only the checksum tells.
TEST(Faults, DamagedTokensEndTheRunBeforeASave) {
  const Scratch scratch;
  prepare_text(scratch);
  EXPECT_EQ(run_ok(scratch, {"data", "verify", "text"}),
            "text: good (80 documents, 21,427 tokens, 41.85 KiB)\n");
  std::string tokens = read_file(scratch / "text.bin");
  tokens[40'000] = char(tokens[40'000] ^ 1);
  write_file(scratch / "text.bin", tokens);
  const Result verified = run(scratch, {"data", "verify", "text", "text"});
  EXPECT_EQ(verified.code, 1) << verified.err;
  EXPECT_EQ(count_of(verified.out, "text: text.bin: checksum is "), 2) << verified.out;
  for (const char* ranks : {"1", "2"}) {
    std::vector<std::string> args = train_args({"train.steps=5"});
    args.insert(args.end(), {"--ranks", ranks});
    const Result result = run(scratch, args);
    EXPECT_EQ(result.code, 24) << result.err;
    EXPECT_EQ(count_of(result.err, "ashlar: text.bin: checksum is "), 1) << result.err;
    for (const auto& entry : fs::directory_iterator(scratch / "run/checkpoints"))
      EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
  run_ok(scratch, train_args({"train.steps=5", "data.verify=off"}));
}

// No file may grow past 96 KiB: a shard of the tiny run is larger, its other files are not.
void limit_file_size() {
  constexpr rlim_t kBytes = 96 << 10;
  const rlimit limit{kBytes, kBytes};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(126);
}

TEST(Faults, TwoFailedSavesEndTheRunAndTheEarlierStepStaysGood) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const char* async : {"checkpoint.async=true", "checkpoint.async=false"}) {
    SCOPED_TRACE(async);
    fs::remove_all(scratch / "run");
    run_ok(scratch, train_args({"train.steps=10", async}));
    const Result failed = run(scratch, train_args({"train.steps=100000", async}), limit_file_size);
    EXPECT_EQ(failed.code, 25) << failed.err;
    EXPECT_EQ(count_of(failed.err, "step 20 is not saved"), 1) << failed.err;
    EXPECT_EQ(count_of(failed.err, "\nashlar: "), 1) << failed.err;
    const std::string good = "run/checkpoints/step-000000000010";
    run_ok(scratch, {"ckpt", "verify", good});
    for (const auto& entry : fs::directory_iterator(scratch / "run/checkpoints"))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp")) << entry.path();
    const Result rest = run(scratch, train_args({async}));
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_NE(rest.err.find("continuing after step 10 "), std::string::npos) << rest.err;
  }
}

TEST(Faults, FailedLastSaveIsNoSuccess) {
  const Scratch scratch;
  prepare_text(scratch);
  for (const char* async : {"checkpoint.async=true", "checkpoint.async=false"}) {
    fs::remove_all(scratch / "run");
    const Result result = run(scratch, train_args({"checkpoint.every=0", async}), limit_file_size);
    EXPECT_EQ(result.code, 25) << async << "\n" << result.err;
  }
}

// Gives the process a file system of its own there, which no other process sees.
void mount_small_disk(const std::string& directory, const char* size) {
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", directory.c_str(), "tmpfs", 0, size) != 0)
    _exit(125);
}

// Fills a part of the disk once the run has started, in a process of its own.
void fill_later(const std::string& sign, const std::string& filler, size_t bytes) {
  if (fork() != 0) return;
  for (int ms = 0; ms < 30'000 && access(sign.c_str(), F_OK) != 0; ++ms) usleep(1000);
  const std::string content(bytes, 'x');
  const int file = open(filler.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  _exit(write(file, content.data(), content.size()) == ssize_t(content.size()) ? 0 : 1);
}

TEST(Faults, FullDiskIsNamedWithWhatItNeeds) {
  const Scratch scratch;
  prepare_text(scratch);
  fs::create_directory(scratch / "disk");
  const std::string disk = scratch / "disk";
  const std::vector<std::string> args =
      train_args({"train.run_dir=disk/run", "train.steps=100000", "train.eval_every=0"});
  const Result refused = run(scratch, args, [disk] { mount_small_disk(disk, "size=4m"); });
  if (refused.code == 125) GTEST_SKIP() << "needs the right to mount a tmpfs (root)";
  EXPECT_EQ(refused.code, 25) << refused.err;
  EXPECT_EQ(count_of(refused.err, "is saved where 16.5"), 1) << refused.err;
  EXPECT_EQ(count_of(refused.err, "step "), 0) << refused.err;

  const Result result = run(scratch, args, [disk] {
    mount_small_disk(disk, "size=28m");
    fill_later(disk + "/run/metrics.jsonl", disk + "/filler", 16 << 20);
  });
  EXPECT_EQ(result.code, 25) << result.err;
  // Two steps and the second try of each, one step later; the last line says it again.
  EXPECT_EQ(count_of(result.err, "ashlar: step "), 1) << result.err;
  EXPECT_EQ(count_of(result.err, " is not saved: it needs "), 4) << result.err;
  EXPECT_EQ(count_of(result.err, "make room or lower checkpoint.keep"), 4) << result.err;
}

// In this process, so that one single call can fail, at once.  Every other step is there.
TEST(Faults, OneFailedSaveIsAWarningAndTheNextSucceeds) {
  const Scratch scratch;
  prepare_text(scratch);
  const auto posix = posix_files();
  std::atomic<bool> failed{false};
  const auto files =
      faulty_files(*posix, [&](int64_t, std::string_view operation, const std::string& path) {
        const bool hit = path.find("step-000000000020") != std::string::npos &&
                         path.ends_with("manifest.json") && operation == "sync";
        if (hit) failed = true;
        return hit ? Fault::kDiskFull : Fault::kNone;
      });
  std::string said;
  Log log([&](std::string_view line) { said += std::string(line) + "\n"; });
  const Recipe recipe =
      load_recipe(kData + "/recipes/tiny.toml",
                  std::vector<std::string>{"data.train=" + (scratch / "text").string(),
                                           "train.run_dir=" + (scratch / "run").string(),
                                           "train.steps=50", "checkpoint.keep=10"});
  EXPECT_EQ(train::start_run(recipe, *files, log), train::Outcome::kDone);
  EXPECT_TRUE(failed);
  EXPECT_EQ(count_of(said, "step 20 is not saved"), 1) << said;
  for (const int64_t step : {10, 30, 40, 50})
    EXPECT_TRUE(fs::exists(step_directory(scratch / "run", step) / "COMMIT")) << step;
  EXPECT_FALSE(fs::exists(step_directory(scratch / "run", 20)));
  EXPECT_EQ(read_steps(scratch / "run").size(), 50u);
  EXPECT_NE(read_file(scratch / "run/metrics.jsonl").find("save_failed"), std::string::npos);
  run_ok(scratch, {"ckpt", "verify", "run/checkpoints/step-000000000030"});
}

TEST(Faults, AMemoryLimitIsRefusedBeforeTheStart) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(scratch, train_args({"train.memory_limit_mib=1"}));
  EXPECT_EQ(result.code, 22) << result.err;
  EXPECT_NE(result.err.find("ashlar: train.memory_limit_mib is 1, but a rank takes"),
            std::string::npos)
      << result.err;
  EXPECT_FALSE(fs::exists(scratch / "run")) << "a run that cannot start leaves nothing";
}

TEST(Faults, StdoutThatIsFullIsAnError) {
  const Scratch scratch;
  const Result result = run(scratch, {"info"}, [] {
    if (freopen("/dev/full", "w", stdout) == nullptr) _exit(126);
  });
  EXPECT_EQ(result.code, 25) << result.err;
}

TEST(Faults, TwoRunsCannotShareARunDirectory) {
  const Scratch scratch;
  prepare_text(scratch);
  Program first(scratch.path(), train_args({"train.steps=1000000", "checkpoint.every=50"}));
  while (!fs::exists(step_directory(scratch / "run", 50)) && first.running()) usleep(1000);
  const auto names = [&] {
    return std::distance(fs::directory_iterator(scratch / "run/tensorboard"), {});
  };
  const std::string recipe = read_file(scratch / "run/recipe.toml");
  const auto boards = names();
  const Result second = run(scratch, train_args({"optim.lr=1e-3"}));
  EXPECT_EQ(second.code, 2) << second.err;
  EXPECT_EQ(read_file(scratch / "run/recipe.toml"), recipe);
  EXPECT_EQ(names(), boards);
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().code, 27);
}

TEST(Faults, NonFiniteStepsEndTheRunByName) {
  const Scratch scratch;
  prepare_text(scratch);
  const Result result = run(
      scratch, train_args({"optim.lr=1e30", "optim.lr_min=1e30", "optim.warmup_steps=0",
                           "train.precision=fp32", "optim.clip_norm=0", "optim.matrices=adamw"}));
  EXPECT_EQ(result.code, 23) << result.err;
  EXPECT_EQ(result.err.find("-nan"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("is skipped: "), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("first non-finite gradient "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace ashlar::integration
