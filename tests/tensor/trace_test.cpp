#include "ashlar/tensor/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

namespace ashlar {
namespace {

using Kind = TraceEvent::Kind;

TEST(Trace, DropsAndCountsWhatHasNoRoom) {
  Trace trace;
  const int16_t lane = trace.add_lane("world", true);
  trace.start(TraceRoom{.events = 2, .lane_events = 1, .messages = 1, .dims = 1});
  const int16_t name = trace.index_of("a");
  EXPECT_EQ(trace.begin({.name = name}), 0);
  trace.add_dims(0, {1, 2, 3, 4});
  const int64_t second = trace.begin({.kind = Kind::kPost, .name = name});
  trace.add_message(second, {3, true, 10});
  trace.add_message(second, {4, true, 20});  // dropped
  EXPECT_EQ(trace.begin({.name = name}), -1);
  trace.end(-1);
  trace.set_ticket(-1, 5);
  trace.add_message(-1, {3, true, 10});
  trace.add_to_lane({.kind = Kind::kBegan, .lane = lane});
  trace.add_to_lane({.kind = Kind::kEnded, .lane = lane});
  EXPECT_EQ(trace.events().size(), 2u);
  EXPECT_EQ(trace.lane_events(lane).size(), 1u);
  EXPECT_EQ(trace.messages(trace.events()[1]).size(), 1u);
  EXPECT_EQ(trace.dims(trace.events()[0]), (TraceDims{1, 2, 3, 4}));
  EXPECT_EQ(trace.size(), (TraceRoom{2, 1, 1, 1}));
  EXPECT_EQ(trace.num_dropped(), 3);

  // Later events have room of their own.
  trace.stop();
  trace.start(TraceRoom{.events = 1, .lane_events = 1, .messages = 1});
  EXPECT_EQ(trace.begin({.name = name}), 2);
  trace.add_dims(2, {1, 2, 3, 4});  // dropped
  EXPECT_EQ(trace.dims(trace.events()[2]), TraceDims{});
  EXPECT_EQ(trace.begin({.name = name}), -1);
  EXPECT_EQ(trace.num_dropped(), 5);
  trace.stop();
  trace.release();
  EXPECT_EQ(trace.events().size(), 0u);
  EXPECT_EQ(trace.num_dropped(), 0);
  EXPECT_EQ(trace.index_of("a"), name);
}

TEST(Trace, StoresEqualListsOfChunksOnce) {
  Trace trace;
  const int16_t three = trace.add_group({"data", {4, 6, 8}, -1}),
                two = trace.add_group({"pair", {4, 6}, -1});
  const auto post = [&](int16_t group, std::vector<int64_t> counts, int64_t bytes_each) {
    const int64_t event = trace.begin({.kind = Kind::kPost, .group = group});
    trace.add_chunks(event, counts, bytes_each);
    return trace.messages(trace.events().back());
  };
  const auto is = [](std::span<const TraceMessage> chunks, std::vector<TraceMessage> wanted) {
    return std::ranges::equal(chunks, wanted);
  };
  trace.start(TraceRoom{.events = 9, .messages = 3 + 3 + 2 + 1});
  const std::vector<TraceMessage> one = {{4, false, 40}, {6, false, 20}, {8, false, 0}};
  const auto first = post(three, {10, 5, 0}, 4);
  EXPECT_TRUE(is(first, one));
  const auto other = post(three, {5, 10, 0}, 4);
  EXPECT_TRUE(is(other, {{4, false, 20}, {6, false, 40}, {8, false, 0}}));
  const auto again = post(three, {20, 10, 0}, 2);
  EXPECT_TRUE(is(again, one));
  EXPECT_EQ(again.data(), first.data());
  EXPECT_TRUE(is(post(two, {10, 5}, 4), {{4, false, 40}, {6, false, 20}}));
  EXPECT_EQ(trace.size().messages, 8);

  // A list that does not fit is cut, counted, and not stored as a whole one.
  EXPECT_EQ(post(three, {1, 2, 3}, 4).size(), 1u);
  EXPECT_EQ(post(three, {1, 2, 3}, 4).size(), 0u);
  EXPECT_EQ(trace.num_dropped(), 5);

  trace.clear();
  EXPECT_TRUE(is(post(three, {1, 2, 3}, 4), {{4, false, 4}, {6, false, 8}, {8, false, 12}}));
}

TEST(Trace, GrowsWhereNoLaneHasAThread) {
  Trace trace;
  trace.add_lane("world", false);
  trace.start();
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(trace.begin({}), i);
  EXPECT_EQ(trace.num_dropped(), 0);
  EXPECT_EQ(trace.size().events, 1000);

  Trace threaded;
  threaded.add_lane("world", true);
  EXPECT_DEATH(threaded.start(), "has_thread");
}

TEST(Trace, PlacesAndNamesAreIndices) {
  Trace trace;
  trace.start();
  for (const char* phase : {"forward", "backward", "forward"}) {
    trace.enter(phase, 7);
    trace.enter_micro_batch(2);
    trace.begin({.name = trace.index_of("k")});
  }
  const auto events = trace.events();
  EXPECT_EQ(trace.phase(events[0].place), "forward");
  EXPECT_EQ(trace.phase(events[1].place), "backward");
  EXPECT_EQ(events[0].place, events[2].place);
  EXPECT_NE(events[0].place, events[1].place);
  EXPECT_EQ(trace.text(events[2].name), "k");
  EXPECT_EQ(trace.phase({}), "");
}

// A device that fails says so when its times are read, and not where kernels end.
class CountingClock final : public DeviceClock {
 public:
  explicit CountingClock(bool fails) : fails_(fails) {}
  void mark() override { ++num_marks_; }
  std::vector<double> read() override {
    ASHLAR_REQUIRE(!fails_, kDevice, "no times");
    std::vector<double> moments;
    for (; num_marks_ > 0; --num_marks_) moments.push_back(double(moments.size()));
    return moments;
  }

 private:
  const bool fails_;
  int num_marks_ = 0;
};

TEST(Trace, HasSpansOfADeviceForItsKernels) {
  for (const bool fails : {false, true}) {
    Trace trace;
    CountingClock clock(fails);
    trace.follow(&clock);
    trace.start();
    trace.end(trace.begin({.kind = TraceEvent::Kind::kWait}));
    for (int i = 0; i < 2; ++i) {
      const Trace::Scope call(trace, trace.begin({.name = trace.index_of("add")}));
      trace.count_launches(2);
    }
    trace.count_launches(5);  // of no kernel
    EXPECT_EQ(trace.events()[1].num_launches, 2);
    EXPECT_EQ(trace.events()[2].num_launches, 2);
    if (fails) {
      EXPECT_THROW(trace.read_device(), Error);
      continue;
    }
    trace.read_device();
    ASSERT_EQ(trace.device_spans().size(), 2u);
    EXPECT_EQ(trace.device_spans()[1].event, 2);
    EXPECT_EQ(trace.device_spans()[1].start_s, 2);
    EXPECT_EQ(trace.device_spans()[1].end_s, 3);
  }
}

}  // namespace
}  // namespace ashlar
