// Every fault of probes.h is found: by an error of the emulator, by a signal, by a wrong value, by
// bits that depend on the mode, or by ThreadSanitizer.  The table tells which mode finds it.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>

#include "ashlar/core/function_ref.h"
#include "tests/kernels/gpu/device_array.h"
#include "tests/kernels/gpu/probes.h"

namespace ashlar::device {
namespace {

struct Outcome {
  std::string error;
  uint64_t bits = 0;
  bool right = true;
};

Outcome outcome_of(const std::string& error, const DeviceArray<float>& got,
                   const std::vector<double>& want) {
  Outcome outcome;
  outcome.error = error;
  if (!error.empty()) return outcome;
  const std::vector<float> values = got.values();
  outcome.bits = checksum(values);
  for (size_t i = 0; i < want.size(); ++i)
    outcome.right &= std::abs(double(values[i]) - want[i]) <= 1e-4 * std::abs(want[i]) + 1e-4;
  return outcome;
}

// The width is such that y ends 12 bytes before a multiple of 16.
Outcome run_scale_rows(Fault fault) {
  constexpr int kRows = 3, kWidth = 131;
  const std::vector<float> x = steps_of_256(kRows * kWidth, 1);
  const DeviceArray<float> in(x), out(x.size());
  std::vector<double> want(x.size());
  for (size_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (size_t c = 0; c < kWidth; ++c) sum += double(x[row * kWidth + c]);
    for (size_t c = 0; c < kWidth; ++c) want[row * kWidth + c] = double(x[row * kWidth + c]) * sum;
  }
  const std::string error = scale_rows({in.data(), out.data(), kRows, kWidth, fault});
  return outcome_of(error, out, want);
}

Outcome run_stage_rows(Fault fault) {
  constexpr int kRows = 5, kWidth = 256;
  const std::vector<float> x = steps_of_256(kRows * kWidth, 2);
  const DeviceArray<float> in(x), out(kWidth);
  std::vector<double> want(kWidth);
  for (size_t i = 0; i < x.size(); ++i) want[i % kWidth] += double(x[i]);
  const std::string error = stage_rows({in.data(), out.data(), kRows, kWidth, fault});
  return outcome_of(error, out, want);
}

Outcome run_sum_blocks(Fault fault) {
  constexpr int kSize = 256;
  const std::vector<float> x = steps_of_256(kSize, 3);
  const DeviceArray<float> in(x), partials(kSize / 64), out(1);
  double want = 0;
  for (const float value : x) want += double(value);
  const std::string error = sum_blocks({in.data(), partials.data(), out.data(), kSize, fault});
  return outcome_of(error, out, {want});
}

Outcome run_multiply_tile(Fault fault) {
  const std::vector<float> a = steps_of_256(512, 4), b = steps_of_256(512, 5);
  const DeviceArray<uint16_t> a_in(bf16_bits(a)), b_in(bf16_bits(b));
  const DeviceArray<float> out(1024);
  std::vector<double> want(1024);
  for (size_t i = 0; i < 1024; ++i)
    for (size_t k = 0; k < 16; ++k)
      want[i] += double(a[i / 32 * 16 + k]) * double(b[i % 32 * 16 + k]);
  const std::string error = multiply_tile({a_in.data(), b_in.data(), out.data(), fault});
  return outcome_of(error, out, want);
}

// finds: one letter per mode, e an error of the emulator, s a signal, v a wrong value, b a right
// value with other bits than in mode 0, . nothing.  wide: with warps of 64, if others.  race:
// ThreadSanitizer reports one.  message: part of the error.
struct Expected {
  std::string finds, wide = finds;
  bool race = false;
  std::string message = "";
};
struct Planted {
  Fault fault;
  const char* what;
  Outcome (*run)(Fault);
  Expected expected;
};
const Planted kPlanted[] = {
    {Fault::kNone, "good rows", run_scale_rows, {.finds = "......"}},
    {Fault::kNone, "good stages", run_stage_rows, {.finds = "......"}},
    {Fault::kNone, "good blocks", run_sum_blocks, {.finds = "......"}},
    {Fault::kNone, "good tile", run_multiply_tile, {.finds = "......"}},
    {Fault::kEarlyEnd,
     "a thread that ends early",
     run_scale_rows,
     {.finds = "eeeeee", .message = "which others do not reach"}},
    {Fault::kBarrierInBranch,
     "a barrier in a branch",
     run_scale_rows,
     {.finds = "eeeeee", .message = "is at probes.cu"}},
    {Fault::kHalfOfLanes,
     "a sum over half of the lanes",
     run_scale_rows,
     {.finds = "eeeeee", .message = "gpu.h"}},
    {Fault::kLanesElsewhere,
     "lanes that sum, and one that takes the maximum",
     run_scale_rows,
     {.finds = "eeeeee", .message = "is at gpu.h"}},
    {Fault::kNoBarrierInSum,
     "no barrier before sums of lanes are read",
     run_scale_rows,
     {.finds = "vvvvvv", .race = true}},
    {Fault::kNoBarrierBeforeReuse,
     "no barrier before the room of a sum is used again",
     run_scale_rows,
     {.finds = "..vvvv", .race = true}},
    {Fault::kUninitializedShared,
     "shared memory that nobody wrote",
     run_scale_rows,
     {.finds = "vvvvvv"}},
    {Fault::kSharedOverrun, "a write behind shared memory", run_scale_rows, {.finds = "ssssss"}},
    {Fault::kWritesPastEnd, "a write behind device memory", run_scale_rows, {.finds = "ssssss"}},
    {Fault::kWritesIntoPadding,
     "a write just behind device memory",
     run_scale_rows,
     {.finds = "eeeeee", .message = "a write beside device memory of 1572 bytes"}},
    {Fault::kWritesBeforeStart,
     "a write before device memory",
     run_scale_rows,
     {.finds = "eeeeee", .message = "a write beside device memory of 1572 bytes"}},
    {Fault::kReadsPastEnd, "a read behind device memory", run_scale_rows, {.finds = "ssssss"}},
    {Fault::kReadsPadding, "a read just behind device memory", run_scale_rows, {.finds = "vvvvvv"}},
    {Fault::kMisalignedVector,
     "a vector at an address that is no multiple of 16",
     run_scale_rows,
     {.finds = "eeeeee", .message = "an address at probes.cu"}},
    {Fault::kNoWait, "no wait for a copy", run_stage_rows, {.finds = ".v.v.v"}},
    {Fault::kWaitsForTooFew,
     "a wait that leaves one group too many in flight",
     run_stage_rows,
     {.finds = ".v.v.v"}},
    {Fault::kNoCommit, "copies that no group has", run_stage_rows, {.finds = ".v.v.v"}},
    {Fault::kNoBarrierAfterWait,
     "no barrier between the wait and others' reads",
     run_stage_rows,
     {.finds = "vvvvvv", .race = true}},
    {Fault::kStageOverwritten,
     "a stage overwritten while others read it",
     run_stage_rows,
     {.finds = "v.v.v.", .race = true}},
    {Fault::kMisalignedCopy,
     "a copy from an address that is no multiple of 16",
     run_stage_rows,
     {.finds = "eeeeee", .message = "an address at probes.cu"}},
    {Fault::kReadsOtherBlocks,
     "a block that reads what others write",
     run_sum_blocks,
     {.finds = "vvv..v", .race = true}},
    {Fault::kBlocksWriteSame,
     "blocks that write one element",
     run_sum_blocks,
     {.finds = "......", .race = true}},
    {Fault::kNoBarrierOfLanes,
     "no barrier of lanes",
     run_sum_blocks,
     {.finds = "vv..vv", .race = true}},
    {Fault::kExchangeAsBarrier,
     "an exchange of lanes taken for a barrier",
     run_sum_blocks,
     {.finds = "......", .race = true}},
    {Fault::kNvidiaLanes,
     "a wrong lane map of NVIDIA's",
     run_multiply_tile,
     {.finds = "vvvvvv", .wide = "......"}},
    {Fault::kAmdLanes,
     "a wrong lane map of AMD's",
     run_multiply_tile,
     {.finds = "......", .wide = "vvvvvv"}},
};

struct ChildResult {
  int signal = 0;      // that ended it; 0: none
  std::string result;  // returned by the function
  std::string errors;  // written to stderr
};

std::string read_and_close(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char part[4096];
  for (size_t n = 0; (n = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, n);
  std::fclose(file);
  return text;
}

// Runs a function in a process of its own.  Through files, for a pipe that nobody reads fills up.
ChildResult run_in_child(function_ref<std::string()> function) {
  std::FILE *result = std::tmpfile(), *errors = std::tmpfile();
  std::fflush(nullptr);  // or the child prints it again
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(errors), STDERR_FILENO);
    const std::string text = function();
    _exit(write(fileno(result), text.data(), text.size()) != ssize_t(text.size()));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {WIFSIGNALED(status) ? WTERMSIG(status) : 0, read_and_close(result),
          read_and_close(errors)};
}

struct Finding {
  char letter = '.';
  std::string text;  // the error, or "block bits"
  bool race = false;
};

// right_bits: of mode 0, if they were right.
Finding find_in_mode(const Planted& planted, int mode, std::string& right_bits) {
  const ChildResult child = run_in_child([&] {
    select_mode(mode);
    const Outcome o = planted.run(planted.fault);
    if (!o.error.empty()) return "e" + o.error;
    return std::string(o.right ? "." : "v") + std::to_string(o.bits);
  });
  const bool race = child.errors.find("data race") != std::string::npos;
  if (child.signal != 0) return {'s', "signal " + std::to_string(child.signal), race};
  if (child.result.empty()) return {'?', "no result; stderr: " + child.errors, race};
  const std::string text = child.result.substr(1);
  const bool right = child.result[0] == '.';
  if (mode == 0 && right) right_bits = text;
  const bool differs = right && !right_bits.empty() && text != right_bits;
  return {differs ? 'b' : child.result[0], text, race};
}

TEST(Faults, EachIsFoundByTheModesOfTheTable) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  const bool finds_races = num_modes() == 1;
  for (const Planted& planted : kPlanted) {
    SCOPED_TRACE(planted.what);
    const Expected& want = planted.expected;
    std::string finds, right_bits;
    bool race = false;
    for (int mode = 0; mode < num_modes(); ++mode) {
      const Finding finding = find_in_mode(planted, mode, right_bits);
      finds += finding.letter;
      race |= finding.race;
      EXPECT_TRUE(finding.letter != 'e' || finding.text.find(want.message) != std::string::npos)
          << finding.text;
    }
    EXPECT_EQ(finds, (warp_size() == 64 ? want.wide : want.finds).substr(0, finds.size()));
    EXPECT_EQ(race, finds_races && want.race);
  }
}

// Work that overwrites what a side order copies, with and without a wait for the copy.
TEST(SideOrderFaults, AreShownByCopiesThatAreLate) {
  if (const std::string reason = missing(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr size_t kBytes = 64;
  void* const data = take(kBytes);
  auto* const pinned = static_cast<uint64_t*>(take_pinned(kBytes));
  SideOrder* const order = take_side_order(1);
  const auto fill = [&](uint64_t number) {
    const Fill all{.to = data,
                   .rows = 1,
                   .row_bytes = kBytes,
                   .stride_bytes = kBytes,
                   .pattern = number,
                   .unit_bytes = 8};
    EXPECT_EQ(launch(all), "");
  };
  EXPECT_NE(queue_side_copy(order, pinned, data, kBytes), "");  // which work it is to see is unsaid
  for (const bool held : {true, false}) {
    fill(1);
    EXPECT_EQ(follow_work(order), "");
    EXPECT_EQ(queue_side_copy(order, pinned, data, kBytes), "");
    EXPECT_EQ(set_mark(order, 0), "");
    if (held) {
      EXPECT_EQ(hold_work(order), "");
    }
    fill(2);
    for (bool passed = false; !passed;) ASSERT_EQ(has_passed(order, 0, &passed), "");
    EXPECT_EQ(pinned[0], held ? 1u : 2u);
  }
  give_side_order(order);
  give_pinned(pinned);
  give(data);
}

}  // namespace
}  // namespace ashlar::device
