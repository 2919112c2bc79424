#include "ashlar/kernels/attention.h"

#include <limits>

#include "tests/kernels/gpu/product_case.h"

namespace ashlar::kernels {
namespace {

using Segments = std::vector<Segment>;

struct GpuAttentionCase {
  std::string name;
  AttentionShape shape;
  Segments queries, keys;
  int64_t key_rows;
  Segments part = {};  // of keys, for which backward gives its share; none: all
};

AttentionShape gpu_heads(int64_t N, int64_t K, int64_t D, int64_t V, int64_t window = 0) {
  return {.N = N, .K = K, .D = D, .V = V, .window = window, .scale = 1 / std::sqrt(double(D))};
}

// Documents of these lengths, one after the other, that are queries and keys.
GpuAttentionCase documents(std::string name, AttentionShape shape,
                           const std::vector<int64_t>& lengths) {
  Segments segments;
  int64_t row = 0;
  for (const int64_t length : lengths) {
    segments.push_back({row, length, 0, int64_t(segments.size())});
    row += length;
  }
  return {std::move(name), shape, segments, segments, row};
}

GpuAttentionCase partial(std::string name, AttentionShape shape, Segments queries, Segments keys,
                         int64_t key_rows, Segments part = {}) {
  shape.partial = true;
  return {std::move(name), shape, std::move(queries), std::move(keys), key_rows, std::move(part)};
}

// Tiles have 128 lines or fewer and steps 32 columns; slices have 32, 64 or 128 columns.
std::vector<GpuAttentionCase> gpu_attention_cases() {
  const Segments pieces = {{0, 70, 130, 1}, {70, 35, 0, 0}, {105, 50, 0, 1}, {155, 80, 50, 1}};
  return {
      documents("one", gpu_heads(2, 1, 8, 8), {1}),
      documents("heads", gpu_heads(6, 2, 16, 16), {65}),
      documents("window-1", gpu_heads(1, 1, 8, 8, 1), {40}),
      documents("window-20", gpu_heads(2, 1, 16, 16, 20), {10, 70, 1, 133}),
      documents("window-130", gpu_heads(1, 1, 32, 32, 130), {300}),
      documents("documents", gpu_heads(2, 2, 64, 64), {10, 1, 64, 130, 3}),
      documents("D-128", gpu_heads(2, 1, 128, 128), {150}),
      documents("D-256", gpu_heads(1, 1, 256, 256), {70}),
      documents("odd-sizes", gpu_heads(2, 1, 3, 5), {64, 3, 9}),
      documents("V-8-of-D-24", gpu_heads(2, 1, 24, 8), {40}),
      documents("V-160-of-D-40", gpu_heads(1, 1, 40, 160), {37}),
      {"decode",
       gpu_heads(4, 2, 24, 40),
       {{0, 1, 99, 0}, {1, 1, 0, 1}, {2, 2, 76, 2}},
       {{0, 100, 0, 0}, {100, 1, 0, 1}, {200, 78, 0, 2}},
       300},
      {"few-queries",
       gpu_heads(2, 1, 16, 24),
       {{0, 1, 899, 0}, {1, 2, 3, 1}, {3, 1, 40, 2}},
       {{0, 500, 400, 0}, {500, 5, 0, 1}, {520, 400, 0, 0}, {1000, 41, 0, 2}},
       1100},
      {"pieces",
       gpu_heads(2, 1, 16, 16),
       {{0, 50, 150, 1}, {50, 50, 0, 1}, {100, 30, 5, 0}},
       pieces,
       240},
      partial("part", gpu_heads(2, 1, 16, 24, 90), {{0, 50, 150, 1}, {50, 30, 5, 0}}, pieces, 235,
              {{155, 80, 50, 1}}),
      partial("few-queries-part", gpu_heads(2, 1, 8, 8, 300), {{0, 1, 900, 0}, {1, 3, 10, 1}},
              {{0, 500, 400, 0}, {500, 30, 20, 1}}, 600),
      partial("sees-nothing", gpu_heads(2, 1, 16, 16), {{0, 40, 0, 1}, {40, 3, 0, 2}},
              {{0, 50, 20, 1}, {50, 10, 0, 3}}, 60),
  };
}

struct Tensors {
  Tensor q, k, v, out, lse;
  Attention call(const AttentionShape& shape) const {
    return {.shape = shape, .q = q, .k = k, .v = v, .out = out, .lse_TN = lse};
  }
};

std::vector<Output> run_attention(Place& p, const GpuAttentionCase& c) {
  const auto& [N, K, D, V, window, scale, of_part] = c.shape;
  const Sequence queries(c.queries);
  const int64_t T = queries.num_tokens();
  const DType type = p.product();
  const Tensors x{.q = p.random(type, "q", {T, N * D}),
                  .k = p.random(type, "k", {c.key_rows, K * D}),
                  .v = p.random(type, "v", {c.key_rows, K * V}),
                  .out = p.unset(type, {T, N * V}),
                  .lse = p.unset(p.wide(), {T, N})};
  kernels::attention_forward(p.context(), queries, c.keys, x.call(c.shape));
  const Tensor dout = p.random(type, "dout", {T, N * V});
  const Tensor dq = p.unset(p.wide(), x.q.shape), dk = p.unset(p.wide(), x.k.shape),
               dv = p.unset(p.wide(), x.v.shape);
  kernels::attention_backward(p.context(), queries, c.part.empty() ? c.keys : c.part,
                              x.call(c.shape), {.dout = dout, .dq = dq, .dk = dk, .dv = dv});
  return {{"out", x.out}, {"lse", x.lse}, {"dq", dq}, {"dk", dk}, {"dv", dv}};
}

TEST(GpuAttention, MatchesTheReferenceInEveryMode) {
  constexpr Bar kForward{5e-3, 1e-2}, kLse{1e-3, 1e-3}, kBackward{1e-2, 2e-2};
  for (const GpuAttentionCase& c : gpu_attention_cases())
    for (const DType type : {DType::kF32, DType::kBF16})
      expect_product_op(fmt::format("attention/{}/{}", c.name, name_of(type)), type,
                        {kForward, kLse, kBackward, kBackward, kBackward},
                        [&](Place& p) { return run_attention(p, c); });
}

TEST(GpuAttention, WithoutQueriesKeysHaveNoGradient) {
  Bench bench({DType::kF32, DType::kBF16});
  Place p(gpu::kOps, bench);
  GpuAttentionCase c = documents("", gpu_heads(2, 1, 16, 16), {40});
  c.queries.clear();
  const std::vector<Output> outputs = run_attention(p, c);
  for (const size_t i : {3u, 4u})
    for (const double x : values_of(outputs[i].tensor)) EXPECT_EQ(x, 0) << outputs[i].name;
}

// A NaN reaches the queries that see it, and a score that is infinite is no number either.
TEST(GpuAttention, PassesNanOn) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Bench bench({DType::kF32, type});
    Place p(gpu::kOps, bench);
    const AttentionShape shape = gpu_heads(1, 1, 8, 8);
    const Tensors x{.q = p.random(type, "q", {80, 8}),
                    .k = p.random(type, "k", {80, 8}),
                    .v = p.random(type, "v", {80, 8}),
                    .out = p.unset(type, {80, 8}),
                    .lse = p.unset(DType::kF32, {80, 1})};
    const Tensor bad = x.k.slice(70, 71);
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    type == DType::kF32 ? p.edit<float>(bad, [](float* k) { k[0] = kNan; })
                        : p.edit<bf16>(bad, [](bf16* k) { k[0] = bf16(kNan); });
    const Segments document = {{0, 80, 0, 0}};
    kernels::attention_forward(p.context(), Sequence(document), document, x.call(shape));
    const std::vector<double> out = values_of(x.out), lse = values_of(x.lse);
    for (size_t t = 0; t < 80; ++t) {
      EXPECT_EQ(std::isnan(lse[t]), t >= 70) << t;
      for (size_t d = 0; d < 8; ++d) EXPECT_EQ(std::isnan(out[8 * t + d]), t >= 70) << t;
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
