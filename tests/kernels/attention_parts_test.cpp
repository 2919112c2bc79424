// Attention over keys that come part by part is attention over all of them.
#include <array>
#include <limits>

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr int64_t kN = 4, kK = 2, kD = 16, kV = 24;

// Queries of the middle of document 1 and the start of document 2 against keys in three parts, of
// which some queries see nothing.
const std::vector<Segment> kQueries = {{0, 70, 60, 1}, {70, 30, 0, 2}};
const std::vector<std::vector<Segment>> kParts = {
    {{0, 70, 60, 1}, {70, 30, 0, 2}}, {{0, 60, 0, 1}, {60, 40, 0, 3}}, {{0, 100, 130, 1}}};

struct Whole {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
};

AttentionShape shape_of(int64_t window, bool partial) {
  return {kN, kK, kD, kV, window, 0.25, partial};
}

Whole make_whole(Bench& bench) {
  const Shape q{100, kN * kD}, k{300, kK * kD}, v{300, kK * kV}, out{100, kN * kV};
  return {bench.product("q", q), bench.product("k", k),
          bench.product("v", v), bench.product("dout", out),
          bench.product(out),    bench.stream({100, kN}),
          bench.stream(q),       bench.stream(k),
          bench.stream(v)};
}

Tensor rows_of(const Tensor& all, size_t part) {
  return all.slice(int64_t(part) * 100, int64_t(part) * 100 + 100);
}

void run_whole(const Context& ctx, int64_t window, const Whole& w) {
  std::vector<Segment> keys;
  for (size_t part = 0; part < kParts.size(); ++part)
    for (Segment key : kParts[part]) {
      key.row += int64_t(part) * 100;
      keys.push_back(key);
    }
  const Sequence queries(kQueries);
  const Attention x{.shape = shape_of(window, false),
                    .q = w.q,
                    .k = w.k,
                    .v = w.v,
                    .out = w.out,
                    .lse_TN = w.lse};
  attention_forward(ctx, queries, keys, x);
  attention_backward(ctx, queries, keys, x, {.dout = w.dout, .dq = w.dq, .dk = w.dk, .dv = w.dv});
}

void run_parts(Bench& bench, const Context& ctx, int64_t window, const Whole& w) {
  const Sequence queries(kQueries);
  const Tensor sum = bench.stream(w.out.shape), out = bench.product(w.out.shape);
  const Tensor lse = bench.stream(w.lse.shape), dq = bench.stream(w.q.shape);
  for (size_t part = 0; part < kParts.size(); ++part) {
    attention_forward(ctx, queries, kParts[part],
                      {.shape = shape_of(window, true),
                       .q = w.q,
                       .k = rows_of(w.k, part),
                       .v = rows_of(w.v, part),
                       .out = part == 0 ? w.out : out,
                       .lse_TN = part == 0 ? w.lse : lse});
    if (part > 0)
      attention_merge(ctx, {.V = kV,
                            .out_a = part == 1 ? w.out : sum,
                            .lse_a_TN = w.lse,
                            .out_b = out,
                            .lse_b_TN = lse,
                            .out = part == 2 ? w.out : sum,
                            .lse_TN = w.lse});
  }
  fill_zero(w.dq);
  for (size_t part = 0; part < kParts.size(); ++part) {
    attention_backward(
        ctx, queries, kParts[part],
        {.shape = shape_of(window, true),
         .q = w.q,
         .k = rows_of(w.k, part),
         .v = rows_of(w.v, part),
         .out = w.out,
         .lse_TN = w.lse},
        {.dout = w.dout, .dq = dq, .dk = rows_of(w.dk, part), .dv = rows_of(w.dv, part)});
    for (int64_t i = 0; i < dq.numel(); ++i)
      dq.dtype == DType::kF64 ? w.dq.as<double>()[i] += dq.as<double>()[i]
                              : w.dq.as<float>()[i] += dq.as<float>()[i];
  }
}

class Parts : public testing::TestWithParam<int64_t> {};  // window
INSTANTIATE_TEST_SUITE_P(AttentionParts, Parts, testing::Values(0, 9, 80));

void expect_parts(Precision precision, bool reference, int64_t window, double tolerance) {
  Bench exact, bench(precision, reference, 2);
  Allocator allocator(Device::kCpu);
  Arena workspace(allocator, 1 << 21, Tag::kWorkspace);
  Context ctx = bench.context();
  ctx.workspace = &workspace;
  const Whole want = make_whole(exact), got = make_whole(bench);
  run_whole(exact.context(), window, want);
  run_parts(bench, ctx, window, got);
  const std::array pairs{std::pair{&want.out, &got.out}, std::pair{&want.lse, &got.lse},
                         std::pair{&want.dq, &got.dq}, std::pair{&want.dk, &got.dk},
                         std::pair{&want.dv, &got.dv}};
  for (const auto& [a, b] : pairs) {
    const std::vector<double> x = values_of(*a), y = values_of(*b);
    const double bound = tolerance * largest(x);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(y[i], x[i], bound) << (a - &want.q) << " " << i;
  }
}

TEST_P(Parts, AddUpToTheWhole) {
  expect_parts({}, true, GetParam(), 1e-13);
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    expect_parts({DType::kF32, DType::kF32}, false, GetParam(), 2e-5);
    expect_parts({DType::kF32, DType::kBF16}, false, GetParam(), 0.02);
  }
  select_isa(best);
}

// Decoding reads its keys on a path of its own.
TEST(AttentionParts, AQueryWithoutKeysGivesNothing) {
  for (const int64_t length : {1, 40})
    for (const DType product : {DType::kF64, DType::kF32, DType::kBF16}) {
      Bench bench({product == DType::kF64 ? product : DType::kF32, product}, false);
      const Sequence queries({{0, length, 5, 1}});
      const std::vector<Segment> keys = {{0, 50, 6 + length, 1}, {50, 14, 0, 2}};
      const Tensor q = bench.product("q", {length, kN * kD}), k = bench.product("k", {64, kK * kD});
      const Tensor v = bench.product("v", {64, kK * kV});
      const Tensor out = bench.product("out", {length, kN * kV});
      const Tensor lse = bench.stream("lse", {length, kN});
      Attention x{.shape = shape_of(0, true), .q = q, .k = k, .v = v, .out = out, .lse_TN = lse};
      attention_forward(bench.context(), queries, keys, x);
      for (const double x : values_of(out)) EXPECT_EQ(x, 0);
      for (const double x : values_of(lse)) EXPECT_EQ(x, kNone);
      x.shape.partial = false;
      EXPECT_DEATH(attention_forward(bench.context(), queries, keys, x), "");
    }
}

// One query and `keys` keys with one channel each; the scores are the keys, the values 0, 1, 2, ...
std::pair<std::vector<double>, double> last_query(const Precision& precision, bool reference,
                                                  const std::vector<double>& scores) {
  const auto length = int64_t(scores.size());
  Bench bench(precision, reference);
  const Tensor q = bench.product({length, 1}), k = bench.product({length, 1});
  const Tensor v = bench.product({length, 1}), out = bench.product({length, 1});
  const Tensor lse = bench.stream({length, 1}), wide = bench.zeros(DType::kF64, {length, 1});
  const auto put = [&](const Tensor& to, auto value) {
    for (int64_t i = 0; i < length; ++i) wide.as<double>()[i] = value(i);
    copy_convert(wide, to);
  };
  put(q, [](int64_t) { return 1; });
  put(k, [&](int64_t i) { return scores[size_t(i)]; });
  put(v, [](int64_t i) { return i; });
  const Sequence queries({{0, length, 0, 0}});
  attention_forward(
      bench.context(), queries, queries.segments(),
      {.shape = {1, 1, 1, 1, 0, 0.7, false}, .q = q, .k = k, .v = v, .out = out, .lse_TN = lse});
  return {values_of(out), values_of(lse).back()};
}

// However large scores are, the softmax of the largest is 1; past the range of its sums it is NaN.
TEST(AttentionParts, HugeScores) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    for (const DType product : {DType::kF64, DType::kF32, DType::kBF16})
      for (const bool reference : {true, false}) {
        const Precision precision{product == DType::kF64 ? product : DType::kF32, product};
        for (const double size : {1e7, 1.23e9, 7.89e12, 3.3e20}) {
          std::vector<double> scores(9, size);
          for (size_t i = 0; i < 9; ++i) scores[i] *= i == 5 ? 1.7 : 0.1 * double(i);
          const auto [out, lse] = last_query(precision, reference, scores);
          const std::vector<double> wanted{0, 1, 2, 3, 4, 5, 5, 5, 5};
          EXPECT_EQ(out, wanted) << size << " on " << name_of(path);
          EXPECT_NEAR(lse, 0.7 * scores[5], 0.01 * scores[5]);
        }
        for (const double size : {4e3, 5e9, 6e19}) {  // below 0 too
          const auto out = last_query(precision, reference, {-3 * size, -size, -2 * size}).first;
          EXPECT_EQ(out, (std::vector<double>{0, 1, 1})) << size << " on " << name_of(path);
        }
        const double nan = std::numeric_limits<double>::quiet_NaN();
        EXPECT_TRUE(std::isnan(last_query(precision, reference, {1, nan, 2}).first[1]));
        EXPECT_TRUE(std::isnan(last_query(precision, reference, {1, nan, 2}).first[2]));
        if (product == DType::kF64) continue;
        const auto [out, lse] = last_query(precision, false, {-1e36, -2e36});
        EXPECT_TRUE(std::isnan(out[0]) && std::isnan(lse)) << out[0] << " " << lse;
      }
  }
  select_isa(best);
}

TEST(AttentionParts, KeysOutsideTheirRowsAreOurBug) {
  Bench bench;
  const Sequence queries({{0, 2, 0, 0}});
  const Tensor q = bench.product({2, 1}), k = bench.product({2, 1}), lse = bench.stream({2, 1});
  const Attention x{
      .shape = {1, 1, 1, 1, 0, 1, false}, .q = q, .k = k, .v = k, .out = q, .lse_TN = lse};
  for (const Segment& key : {Segment{1, 2, 0, 0}, Segment{-1, 2, 0, 0}})
    EXPECT_DEATH(attention_forward(bench.context(), queries, std::span(&key, 1), x), "key.row");
}

struct Merged {
  double out, lse;
};
Merged merge_one(double out_a, double lse_a, double out_b, double lse_b) {
  std::array<double, 6> x{out_a, lse_a, out_b, lse_b, 7, 7};
  const auto at = [&](size_t i) {
    return Tensor{reinterpret_cast<std::byte*>(&x[i]), DType::kF64, Device::kCpu, {1, 1}};
  };
  Bench bench;
  attention_merge(bench.context(), {.V = 1,
                                    .out_a = at(0),
                                    .lse_a_TN = at(1),
                                    .out_b = at(2),
                                    .lse_b_TN = at(3),
                                    .out = at(4),
                                    .lse_TN = at(5)});
  return {x[4], x[5]};
}

TEST(AttentionMerge, FiniteAndExtremeSums) {
  const Merged plain = merge_one(1, std::log(3), 5, std::log(1));
  EXPECT_NEAR(plain.out, 2, 1e-15);
  EXPECT_NEAR(plain.lse, std::log(4), 1e-15);
  const Merged high = merge_one(1, 5000, 3, 5000);  // e^5000 is no double
  EXPECT_EQ(high.out, 2);
  EXPECT_NEAR(high.lse, 5000 + std::log(2), 1e-12);
  const Merged low = merge_one(1, -5000, 3, -5000);
  EXPECT_EQ(low.out, 2);
  EXPECT_NEAR(low.lse, -5000 + std::log(2), 1e-12);
  const Merged far = merge_one(1, 5000, 3, -5000);
  EXPECT_EQ(far.out, 1);
  EXPECT_EQ(far.lse, 5000);
}

TEST(AttentionMerge, APartWithoutKeysIsNotRead) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Merged& m : {merge_one(4, 2.5, nan, kNone), merge_one(nan, kNone, 4, 2.5)}) {
    EXPECT_EQ(m.out, 4);
    EXPECT_EQ(m.lse, 2.5);
  }
  const Merged none = merge_one(0, kNone, 0, kNone);
  EXPECT_EQ(none.out, 0);
  EXPECT_EQ(none.lse, kNone);
  for (const Merged& m : {merge_one(4, 2.5, 1, nan), merge_one(4, nan, 1, 2.5)}) {
    EXPECT_TRUE(std::isnan(m.out));
    EXPECT_TRUE(std::isnan(m.lse));
  }
}

TEST(AttentionMerge, EveryPathAgreesAndMetaCountsTheSame) {
  const Op op = [](Bench& bench) -> std::vector<Output> {
    const Shape wide{70, 3 * 8}, narrow{70, 3};
    const Tensor a = bench.product("a", wide), b = bench.product("b", wide);
    const Tensor sum = bench.stream(wide), out = bench.product(wide);
    const Tensor lse_a = bench.stream("lse a", narrow, 3), lse_b = bench.stream("lse b", narrow, 3);
    const Tensor lse = bench.stream(narrow);
    attention_merge(bench.context(), {.V = 8,
                                      .out_a = a,
                                      .lse_a_TN = lse_a,
                                      .out_b = b,
                                      .lse_b_TN = lse_b,
                                      .out = sum,
                                      .lse_TN = lse});
    attention_merge(bench.context(), {.V = 8,
                                      .out_a = sum,
                                      .lse_a_TN = lse,
                                      .out_b = a,
                                      .lse_b_TN = lse_b,
                                      .out = sum,
                                      .lse_TN = lse});  // in place
    attention_merge(bench.context(), {.V = 8,
                                      .out_a = sum,
                                      .lse_a_TN = lse,
                                      .out_b = b,
                                      .lse_b_TN = lse_a,
                                      .out = out,
                                      .lse_TN = lse});
    return {{"sum", sum}, {"out", out}, {"lse", lse}};
  };
  expect_paths_agree("attention_merge", op);
}

TEST(AttentionMerge, Cost) {
  Bench bench({DType::kF32, DType::kBF16});
  const Tensor a = bench.product({5, 24}), lse = bench.stream({5, 3}), sum = bench.stream({5, 24});
  attention_merge(bench.context(), {.V = 8,
                                    .out_a = a,
                                    .lse_a_TN = lse,
                                    .out_b = a,
                                    .lse_b_TN = lse,
                                    .out = sum,
                                    .lse_TN = lse});
  const Call record = bench.calls().at(0);
  EXPECT_EQ(record.op, "attention_merge");
  EXPECT_EQ(record.cost.flop, 3 * 5 * 24);
  EXPECT_EQ(record.cost.bytes, 2 * (5 * 24 * 2) + 5 * 24 * 4 + 3 * (5 * 3 * 4));
}

}  // namespace
}  // namespace ashlar::kernels
