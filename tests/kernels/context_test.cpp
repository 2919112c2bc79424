#include "ashlar/kernels/context.h"

#include <gtest/gtest.h>

namespace ashlar::kernels {
namespace {

TEST(Context, RecordsKernelsWithTheirPlace) {
  Trace trace;
  const Context ctx{.device = Device::kMeta, .trace = &trace};
  { const auto nobody = ctx.record("before", DType::kF32, {1, 1}); }
  trace.start();
  ctx.enter("backward", 3);
  ctx.enter(TracePlace::Branch::kMixer);
  ctx.enter_micro_batch(2);
  { const auto call = ctx.record("a", DType::kBF16, {10, 100}, {1, 2, 3, 4}); }
  ctx.enter("loss");
  {
    const auto call =
        ctx.record("b", DType::kF32, {1, 2}, {}, TraceEvent::Varies::kVisiblePairs, 7);
  }
  trace.stop();
  { const auto nobody = ctx.record("after", DType::kF32, {1, 1}); }

  const auto events = trace.events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(trace.text(events[0].name), "a");
  EXPECT_EQ(events[0].dtype, DType::kBF16);
  EXPECT_EQ(events[0].flop, 10);
  EXPECT_EQ(events[0].bytes, 100);
  EXPECT_EQ(trace.phase(events[0].place), "backward");
  EXPECT_EQ(events[0].place.block, 3);
  EXPECT_EQ(events[0].place.branch, TracePlace::Branch::kMixer);
  EXPECT_EQ(events[0].place.micro_batch, 2);
  EXPECT_EQ(trace.text(events[1].name), "b");
  EXPECT_EQ(events[1].varies, TraceEvent::Varies::kVisiblePairs);
  EXPECT_EQ(events[1].count, 7);
  EXPECT_EQ(trace.dims(events[0]), (TraceDims{1, 2, 3, 4}));
  EXPECT_EQ(trace.dims(events[1]), TraceDims{});
  EXPECT_EQ(trace.phase(events[1].place), "loss");
  EXPECT_EQ(events[1].place.block, -1);
  EXPECT_EQ(events[1].place.branch, TracePlace::Branch::kNone);
  EXPECT_LE(events[0].start_s, events[0].end_s);
  EXPECT_LE(events[0].end_s, events[1].start_s);
}

TEST(Context, KeepsThePlaceWhereNobodyRecords) {
  Trace trace;
  const Context ctx{.device = Device::kMeta, .trace = &trace};
  ctx.enter("backward", 3);
  ctx.enter(TracePlace::Branch::kMixer);
  ctx.enter_micro_batch(2);
  EXPECT_EQ(trace.phase(trace.place()), "backward");
  EXPECT_EQ(trace.place().block, 3);
  EXPECT_EQ(trace.place().branch, TracePlace::Branch::kMixer);
  EXPECT_EQ(trace.place().micro_batch, 2);
  ctx.enter("loss");
  EXPECT_EQ(trace.place().block, -1);
  EXPECT_EQ(trace.events().size(), 0u);
}

}  // namespace
}  // namespace ashlar::kernels
