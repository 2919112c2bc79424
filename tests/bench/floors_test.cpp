// Floors of calls by the class of their products and by their bytes: on a made-up machine, and as
// this one is measured.
#include "ashlar/bench/floors.h"

#include <gtest/gtest.h>

namespace ashlar::bench {
namespace {

constexpr TraceDims kDense{1, 2048, 512, 256};

TEST(Floors, ClassesFollowFromOpsAndShapes) {
  EXPECT_EQ(class_of("linear_forward", kDense), ProductClass::kDense);
  EXPECT_EQ(class_of("linear_backward_weight", {1, 2048, 8, 256}), ProductClass::kNarrow);
  EXPECT_EQ(class_of("grouped_linear_backward_input", {8, 2048, 8, 8}), ProductClass::kGrouped);
  EXPECT_EQ(class_of("blockdiag_linear_forward", {6, 2048, 64, 128}), ProductClass::kBlockDiagonal);
  EXPECT_EQ(class_of("attention_backward", {4, 2048, 4, 64}), ProductClass::kHeads);
  EXPECT_EQ(class_of("recurrence_forward", {8, 2048, 64, 64}), ProductClass::kStates);
  EXPECT_EQ(class_of("orthogonalize", {8, 512, 256, 5}), ProductClass::kNewtonSchulz);
  for (const char* op : {"linear_heads_forward", "attention_merge", "adamw", "pack"})
    EXPECT_EQ(class_of(op, kDense), ProductClass::kNone) << op;
}

TEST(Floors, ProductsOfACallAreItsShapesOrItsMatrices) {
  using Shapes = std::vector<ProductShape>;
  EXPECT_EQ(products_of(ProductClass::kDense, kDense), (Shapes{{1, 2048, 512, 256}}));
  EXPECT_EQ(products_of(ProductClass::kBlockDiagonal, {6, 2048, 64, 128}),
            (Shapes{{6, 2048, 64, 128, true}}));
  // Four documents of 512 tokens, four heads of 64 channels.
  EXPECT_EQ(products_of(ProductClass::kHeads, {4, 2048, 4, 64}),
            (Shapes{{16, 16 * 512, 512, 64}, {16, 16 * 512, 64, 512}}));
  EXPECT_EQ(products_of(ProductClass::kNewtonSchulz, {8, 512, 256, 5}),
            (Shapes{{8, 8 * 256, 256, 512}, {8, 8 * 256, 512, 256}}));
  EXPECT_EQ(products_of(ProductClass::kStates, {8, 256, 128, 64}),
            (Shapes{{32, 32 * 64, 128, 64}}));
  EXPECT_EQ(products_of(ProductClass::kHeads, {}), Shapes{});  // not recorded
}

TEST(Floors, AreTheLargerOfFlopAndBytesAtTheirRates) {
  Floors floors;
  floors.peak_flops = 1000;
  floors.flops[size_t(ProductClass::kGrouped)] = 500;
  floors.memory.list = {{100, 50}, {1000, 10}};
  EXPECT_EQ(floors.of(ProductClass::kGrouped, 1000, 10), 2.0);  // by its class
  EXPECT_EQ(floors.of(ProductClass::kDense, 1000, 10), 1.0);    // not measured: by the peak
  EXPECT_EQ(floors.of(ProductClass::kNone, 1, 10), 0.2);        // by the least size's rate
  EXPECT_EQ(floors.of(ProductClass::kNone, 1, 999), 999.0 / 50);
  EXPECT_EQ(floors.of(ProductClass::kNone, 1, 2000), 200.0);
}

// A machine whose products reach 300 to 900 flop a second by shape, and whose memory is faster for
// calls of few bytes: whatever single calls do, none is above its floor's speed.
TEST(Floors, NoCallOfASyntheticStepIsFaster) {
  Trace trace;
  trace.start();
  Floors floors;
  floors.peak_flops = 1000;
  floors.memory.list = {{1, 80}, {1000, 20}};
  double now = 0;
  const auto run = [&](std::string_view op, const TraceDims& dims, int64_t flop, int64_t bytes,
                       double seconds) {
    const int64_t event = trace.begin({.name = trace.index_of(op), .flop = flop, .bytes = bytes});
    trace.add_dims(event, dims);
    auto& added = const_cast<TraceEvent&>(trace.events()[size_t(event)]);
    added.start_s = now;
    added.end_s = now += seconds;
  };
  run("linear_forward", kDense, 3000, 60, 10);
  run("linear_forward", {1, 64, 512, 256}, 9000, 60, 10);
  run("grouped_linear_forward", {8, 64, 512, 256}, 900, 6, 2);
  run("swiglu_forward", {}, 5, 400, 6);
  run("adamw", {}, 5, 4000, 201);
  floors.raise(trace);
  EXPECT_EQ(floors.flops_of(ProductClass::kDense), 900);
  EXPECT_EQ(floors.flops_of(ProductClass::kGrouped), 450);
  for (const TraceEvent& e : trace.events())
    EXPECT_LE(
        floors.of(class_of(trace.text(e.name), trace.dims(e)), double(e.flop), double(e.bytes)),
        (e.end_s - e.start_s) * (1 + 1e-12))
        << trace.text(e.name);
}

TEST(Floors, RatesRiseToTheBetterOfTwoMeasurements) {
  Floors a, b;
  a.peak_flops = 5, b.peak_flops = 4;
  a.flops[0] = 1, b.flops[0] = 2;
  a.memory.list = {{1, 7}}, b.memory.list = {{1, 9}};
  a.raise(b);
  EXPECT_EQ(a.peak_flops, 5);
  EXPECT_EQ(a.flops[0], 2);
  EXPECT_EQ(a.memory.at(3), 9);
}

TEST(Floors, TheShapesWithTheMostFlopAreMeasured) {
  Trace trace;
  trace.start();
  for (int32_t n = 1; n <= 6; ++n) {
    const int64_t event = trace.begin({.name = trace.index_of("linear_forward"), .flop = n});
    trace.add_dims(event, {1, 64, 128 * n, 128});
  }
  const auto dense = shapes_of(trace)[size_t(ProductClass::kDense)];
  ASSERT_EQ(dense.size(), 4u);
  EXPECT_EQ(dense[0].N, 128 * 6);
  EXPECT_EQ(dense[3].N, 128 * 3);
}

TEST(Floors, ThisMachineIsMeasured) {
  Threads threads(2);
  ClassShapes shapes;
  shapes[size_t(ProductClass::kDense)] = {{1, 64, 32, 48}};
  shapes[size_t(ProductClass::kGrouped)] = {{3, 60, 32, 16}};
  shapes[size_t(ProductClass::kBlockDiagonal)] = {{2, 33, 16, 32, true}};
  const Floors floors = measure_floors(threads, DType::kF32, shapes);
  EXPECT_GT(floors.peak_flops, 1e6);
  for (size_t i = 0; i < kNumProductClasses; ++i)
    EXPECT_EQ(floors.flops[i] > 1e5, !shapes[i].empty()) << name_of(ProductClass(i));
  ASSERT_GE(floors.memory.list.size(), 5u);
  for (const MemoryRates::Rate& rate : floors.memory.list) {
    EXPECT_GT(rate.bytes_per_s, 1e6) << rate.bytes;
    EXPECT_LT(rate.bytes_per_s, 1e14) << rate.bytes;
  }
}

}  // namespace
}  // namespace ashlar::bench
