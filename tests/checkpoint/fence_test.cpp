// A holder of the lease that is suspended and wakes after another took the root over: at no call,
// in no order of the calls of both, does it change anything of the other's.
#include "ashlar/checkpoint/root/fence.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <thread>

#include "tests/checkpoint/random_boxes.h"
#include "tests/checkpoint/state_test_util.h"
#include "tests/checkpoint/two_hosts.h"

namespace ashlar::checkpoint {
namespace {

// Thousands are worth a night: ASHLAR_FENCE_ROUNDS.
int64_t fence_rounds() {
  const char* text = std::getenv("ASHLAR_FENCE_ROUNDS");
  return text ? std::stoll(text) : 400;
}

using Attempts = std::map<int64_t, std::string>;  // by step

Attempts attempts_in(FileSystem& files) {
  Attempts attempts;
  for (const StepRef& ref : committed_steps(files, "root")) attempts[ref.step] = ref.attempt;
  return attempts;
}

CheckpointOptions on_host(const std::string& host, int64_t keep,
                          std::function<void(double)> sleep) {
  CheckpointOptions options = direct(keep);
  options.lease.holder = process_on(host);
  options.lease.sleep = std::move(sleep);
  return options;
}

// Steps 1 to 3, of which the last may be damaged, and what a killed process left.
void prepare(FileSystem& disk, bool damaged) {
  Log log = quiet_log();
  {
    Checkpointer checkpoints(disk, "root", direct(10), log);
    TinyRun run;
    for (int64_t step = 1; step <= 3; ++step) {
      run.fill(step);
      checkpoints.save(run.request(step));
    }
  }
  if (damaged) overwrite(disk, "root/" + step_name(3) + "/" + kManifestName, "{}");
  disk.make_directories("root/" + tmp_name(4, std::string(32, 'a')) + "/model");
  disk.make_directories("root/.trash-1");
}

// The first holder's life until it ends, or finds out that it lost the root.
struct Elder {
  Elder(FileSystem& files, int64_t keep, bool rejects) {
    Log log = quiet_log();
    try {
      // This process does not wait for a holder that is there already.
      const auto refuse = [](double) { ASHLAR_FAIL(kConfig, "another holds the root"); };
      Checkpointer checkpoints(files, "root", on_host("a", keep, refuse), log);
      TinyRun run;
      for (int64_t step = checkpoints.newest()->step + 1, i = 0; i < 3; ++i, ++step) {
        run.fill(step + 500);
        checkpoints.save(run.request(step));
        announced = step;
      }
      if (!rejects) return;
      announced = -1;
      checkpoints.reject_newest("a test");
    } catch (const Error&) {
    }
  }
  int64_t announced = -1;  // the newest step that it promised and did not take back
};

// The second holder, to the end: everything that it does succeeds.
struct Heir {
  Heir(FileSystem& files, FileSystem& disk, int64_t keep)
      : checkpoints(files, "root", on_host("b", keep, [](double) {}), log) {
    found = checkpoints.newest()->step;
    steps = attempts_in(disk);
    for (int64_t step = found + 1; step <= found + 3; ++step) {
      run.fill(step);
      checkpoints.save(run.request(step));
      // Retention with keep 1 leaves the step before, until the new one was read back.
      if (keep == 1) std::erase_if(steps, [&](const auto& each) { return each.first + 1 < step; });
      steps[step] = checkpoints.newest()->attempt;
      if (keep == 1 && !attempts_in(disk).contains(step - 1)) steps.erase(step - 1);
      last = step;
    }
  }
  Log log = quiet_log();
  TinyRun run;
  Checkpointer checkpoints;
  int64_t found = -1;
  Attempts steps;
  int64_t last = -1;
};

// Returns the calls that each host made.
std::pair<int64_t, int64_t> play(int64_t suspend_at, int64_t alone, Draw& draw, uint64_t seed) {
  const auto disk = memory_files();
  prepare(*disk, draw.below(2) == 0);
  const int64_t keep[2] = {1 + draw.below(2), draw.below(2) == 0 ? 1 : 100};
  const bool rejects = keep[0] > 1 && draw.below(2) == 0;
  Turns turns(suspend_at, alone, seed);
  const auto files_a = turns.files_of(0, *disk), files_b = turns.files_of(1, *disk);
  std::optional<Elder> elder;
  std::thread thread([&] {
    elder.emplace(*files_a, keep[0], rejects);
    turns.end(0);
  });
  std::optional<Heir> heir;
  std::string error;
  try {
    heir.emplace(*files_b, *disk, keep[1]);
  } catch (const Error& caught) {
    error = caught.what();
  }
  turns.end(1);
  thread.join();
  Log log = quiet_log();
  EXPECT_EQ(error, "");
  if (heir) {
    EXPECT_LE(elder->announced, heir->found);
    EXPECT_EQ(attempts_in(*disk), heir->steps);
    for (const auto& [step, attempt] : heir->steps)
      if (step > heir->found) expect_holds(*disk, "root/" + step_name(step), step);
    const int64_t last = heir->last;
    heir.reset();
    for (const std::string& name : disk->list("root/.lease"))
      EXPECT_TRUE(name.starts_with("step-")) << name;
    EXPECT_EQ(open_checkpoint(*disk, "root", log).step(), last);  // reads all of it
  }
  return {turns.calls(0), turns.calls(1)};
}

// Nothing passes, whatever the holder believes, and nothing is lost that was on its way.
TEST(Fence, ThroughAClosedOneNothingPasses) {
  const auto disk = memory_files();
  Log log = quiet_log();
  disk->make_directories("root/.lease");
  const std::string token(32, 'a'), path = fence_path("root", token);
  int explained = 0;
  Fence fence(*disk, "root", token, [&] { ++explained; });
  for (const char* name : {"new", "step-1", "step-2"}) disk->make_directories(join("root", name));
  const std::string gone = fence.take_away("root/step-1");
  overwrite(*disk, join(gone, "x"), "x");
  disk->rename_new("root/step-2", join(path, "bad-step-2-b"));
  EXPECT_EQ(fences_in(*disk, "root"), std::vector<std::string>{path});
  close_fence(*disk, "root", path);
  close_fence(*disk, "root", path);
  EXPECT_FALSE(fence.open());
  EXPECT_EQ(disk->list("root/.bad"), std::vector<std::string>{"step-2-b"});
  disk->make_directories("root/step-3");
  const auto before = disk->list("root");
  ASSERT_EQ(before.size(), 5u);  // what was removed lies in the trash
  EXPECT_TRUE(before[2].starts_with(kTrashPrefix)) << before[2];
  for (const std::function<void()>& change : std::vector<std::function<void()>>{
           [&] { fence.publish("root/new", "root/step-4"); },
           [&] { fence.set_aside("root/step-3", Fence::Aside::kBad, "step-3-c"); },
           [&] { fence.take_away("root/step-3"); }, [&] { fence.remove("root/step-3"); },
           [&] { fence.write("root/LATEST", "3"); }}) {
    explained = 0;
    message_of(ErrorKind::kStorage, change);
    EXPECT_EQ(explained, 1);
    EXPECT_EQ(disk->list("root"), before);
  }
}

TEST(Fence, ASuspendedHolderThatWakesChangesNothing) {
  constexpr int64_t kNever = int64_t(1) << 40;
  Draw draw(17, "fence");
  const int64_t calls_a = play(kNever, kNever, draw, 0).first;  // one after the other
  int64_t calls_b = 0;
  for (int64_t round = 0; round < fence_rounds() && !testing::Test::HasFailure(); ++round) {
    const int64_t suspend_at = draw.below(calls_a);
    const int64_t alone = round == 0 ? kNever : draw.below(calls_b);
    SCOPED_TRACE(fmt::format("round {}: suspended at call {}, the other alone for {}", round,
                             suspend_at, alone));
    calls_b = std::max(calls_b, play(suspend_at, alone, draw, uint64_t(round)).second);
  }
}

// The lease alone: one holder that refreshes, one that starts meanwhile.  One of the two has it.
TEST(Fence, OfAHolderAndAStarterOneHasTheRoot) {
  for (int64_t round = 0; round < fence_rounds() && !testing::Test::HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Draw draw(uint64_t(round), "lease");
    const auto disk = memory_files();
    disk->make_directories("root");
    Turns turns(draw.below(120), draw.below(500), uint64_t(round));
    const auto files_a = turns.files_of(0, *disk), files_b = turns.files_of(1, *disk);
    bool lost = false, refused = false;
    std::thread thread([&] {
      Log log = quiet_log();
      try {
        LeaseOptions options;
        options.holder = process_on("a");
        options.sleep = [](double) { ASHLAR_FAIL(kConfig, "another holds the root"); };
        Lease lease(*files_a, "root", log, options);
        for (int i = 0; i < 5; ++i) lease.refresh();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
        lost = true;
      }
      turns.end(0);
    });
    Log log = quiet_log();
    std::optional<Lease> lease;
    LeaseOptions options;
    options.holder = process_on("b");
    options.sleep = [](double) {};
    try {
      lease.emplace(*files_b, "root", log, options);
      for (int i = 0; i < 3; ++i) lease->refresh();
    } catch (const Error& error) {
      EXPECT_FALSE(lease) << error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kConfig) << error.what();
      refused = true;
    }
    turns.end(1);
    thread.join();
    EXPECT_FALSE(lost && refused);
    if (lease) lease->check();
    lease.reset();
    EXPECT_TRUE(disk->list("root/.lease").empty());
  }
}

}  // namespace
}  // namespace ashlar::checkpoint
