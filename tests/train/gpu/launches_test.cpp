// The trace of steps on a GPU: launches, as a dry run counts them and as the emulator ran them, and
// the times of the device.
#include <gtest/gtest.h>

#include "ashlar/kernels/gpu/emulator/host_view.h"
#include "ashlar/kernels/gpu/emulator/mode.h"
#include "ashlar/train/dry_rank.h"
#include "tests/support/errors.h"
#include "tests/train/gpu/gpu_trainer.h"

namespace ashlar::train {
namespace {

using namespace testing_support;

struct TracedCall {
  std::string name;
  int num_launches;
  bool operator==(const TracedCall&) const = default;
};
void PrintTo(const TracedCall& call, std::ostream* out) {
  *out << call.name << " " << call.num_launches;
}

std::vector<TracedCall> calls_of(const Trace& trace) {
  std::vector<TracedCall> calls;
  for (const TraceEvent& e : trace.events())
    if (e.kind == TraceEvent::Kind::kKernel)
      calls.push_back({std::string(trace.text(e.name)), e.num_launches});
  return calls;
}

std::vector<TracedCall> dry_calls(const Recipe& recipe, DType compute) {
  const DeviceSpec gpu = kernels::gpu::find_gpu();
  Threads threads(1);
  DryRank dry(recipe, compute, 1, 0, threads, {}, nullptr, ComputeDevice::gpu(gpu));
  std::vector<TracedCall> calls;
  dry.trace_step([&](const Trace& trace, const DryRank::OwnWork&) { calls = calls_of(trace); });
  return calls;
}

class GpuLaunches : public testing::TestWithParam<Recipe (*)(const Overrides&)> {};

// The emulator counts kernels where it runs them, but not dense products, which the CPU computes
// there: a layer adds one for each of its products, and an iteration of Newton-Schulz adds three.
TEST_P(GpuLaunches, AreThoseThatADryRunCounts) {
  for (const char* matrices : {"optim.matrices=adamw", "optim.matrices=muon"}) {
    const Recipe recipe = GetParam()({matrices, "train.recompute=true"});
    TestedTrainer gpu(recipe, DType::kBF16, On::kGpu);
    gpu.step(0);
    Trace& trace = *gpu.trainer().context().trace;
    trace.start();
    const int64_t before = device::emulator::num_launches();
    gpu.step(1);
    trace.stop();
    const int64_t num_run = device::emulator::num_launches() - before;
    const std::vector<TracedCall> calls = calls_of(trace);
    EXPECT_EQ(calls, dry_calls(recipe, DType::kBF16));
    int64_t sum = 0, dense = 0, orthogonalized = 0;
    for (const TracedCall& call : calls) {
      sum += call.num_launches;
      dense += call.name.starts_with("linear_");
      orthogonalized += call.name == "orthogonalize";
    }
    EXPECT_GT(dense, 20);
    const int64_t others = sum - num_run - dense;
    if (orthogonalized == 0) {
      EXPECT_EQ(others, 0) << matrices;
    } else {
      EXPECT_GE(others, 3 * recipe.optim.muon_steps * orthogonalized) << matrices;
      EXPECT_EQ(others % (3 * recipe.optim.muon_steps), 0) << matrices;
    }
    EXPECT_EQ(orthogonalized > 0, recipe.optim.matrices == MatrixOptimizer::kMuon);
  }
}

// Every kernel has a span; spans follow each other, and the emulator runs a kernel within its call.
TEST_P(GpuLaunches, HaveTimesOfTheDeviceWithoutMoreWaits) {
  TestedTrainer gpu(GetParam()({}), DType::kF32, On::kGpu);
  gpu.step(0);
  kernels::gpu::Stream& stream = gpu.gpu_memory().stream();
  kernels::gpu::EventClock clock(stream);
  Trace& trace = *gpu.trainer().context().trace;
  trace.follow(&clock);
  trace.start();
  const int64_t before = stream.num_waits();
  const double start_s = Trace::now_s();
  for (int64_t number = 1; number <= 2; ++number) {
    gpu.step(number);
    EXPECT_EQ(stream.num_waits() - before, number);
  }
  const double end_s = Trace::now_s();
  trace.stop();
  trace.read_device();
  trace.follow(nullptr);
  ASSERT_EQ(trace.device_spans().size(), calls_of(trace).size());
  constexpr double kClock_s = 1e-3;  // between the reads of two clocks
  double last_s = start_s - kClock_s, sum_s = 0;
  for (const DeviceSpan& span : trace.device_spans()) {
    const TraceEvent& call = trace.events()[size_t(span.event)];
    EXPECT_EQ(call.kind, TraceEvent::Kind::kKernel);
    EXPECT_LE(last_s, span.start_s);
    EXPECT_LT(span.start_s, span.end_s);
    EXPECT_GE(span.start_s, call.start_s - kClock_s) << trace.text(call.name);
    EXPECT_LE(span.end_s, call.end_s + kClock_s) << trace.text(call.name);
    last_s = span.end_s;
    sum_s += span.end_s - span.start_s;
  }
  EXPECT_LE(last_s, end_s + kClock_s);
  EXPECT_LE(sum_s, end_s - start_s);
  EXPECT_GT(sum_s, 0.2 * (end_s - start_s));  // the emulator works most of the time
}

// A mark is set where a kernel's scope ends, which may not throw.
TEST(GpuEvents, ThatAreMissingAreAnErrorWhereTheyAreRead) {
  kernels::gpu::GpuMemory memory(1 << 20);
  kernels::gpu::EventClock clock(memory.stream());
  clock.mark();
  device::emulator::refuse_events(true);
  clock.mark();
  device::emulator::refuse_events(false);
  clock.mark();
  EXPECT_EQ(ashlar::testing_support::message_of(ErrorKind::kDevice, [&] { clock.read(); }),
            "the GPU did not record all events of the trace; record fewer steps");
  for (int i = 0; i < 3; ++i) clock.mark();  // of which one has no event yet
  EXPECT_EQ(clock.read().size(), 3u);
}

std::string name_of_family(const testing::TestParamInfo<Recipe (*)(const Overrides&)>& info) {
  const char* const names[] = {"llama", "zaya1", "moe"};
  return names[info.index];
}
INSTANTIATE_TEST_SUITE_P(Families, GpuLaunches,
                         testing::Values(static_cast<Recipe (*)(const Overrides&)>(tiny_llama),
                                         tiny_zaya1, tiny_moe),
                         name_of_family);

}  // namespace
}  // namespace ashlar::train
