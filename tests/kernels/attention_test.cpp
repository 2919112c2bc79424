#include "ashlar/kernels/attention.h"

#include <numeric>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/cpu/attention/rows_args.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

struct AttentionCase {
  std::string name;
  AttentionShape shape;
  std::vector<Segment> queries, keys;
  int64_t key_rows;
};

AttentionShape heads(int64_t N, int64_t K, int64_t D, int64_t window = 0) {
  return {N, K, D, D, window, 1.0 / std::sqrt(double(D))};
}

// Values of a head size of their own.
AttentionShape with_values(AttentionShape shape, int64_t V) {
  shape.V = V;
  return shape;
}

AttentionCase itself(std::string name, AttentionShape shape, std::vector<Segment> segments) {
  const int64_t rows = segments.back().row + segments.back().length;
  return {std::move(name), shape, segments, segments, rows};
}

std::vector<Segment> one(int64_t length) {
  return {{0, length, 0, 0}};
}

// Documents of these lengths, one after the other.
std::vector<Segment> packed(const std::vector<int64_t>& lengths) {
  std::vector<Segment> segments;
  int64_t row = 0;
  for (const int64_t length : lengths) {
    segments.push_back({row, length, 0, int64_t(segments.size())});
    row += length;
  }
  return segments;
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  for (const int64_t T : {1, 3, 17, 65})
    for (const int64_t window : {0, 1, 3, 64})
      all.push_back(
          itself(fmt::format("T {} window {}", T, window), heads(4, 2, 8, window), one(T)));
  all.push_back(itself("D 64", heads(4, 2, 64), one(200)));
  all.push_back(itself("D 128, window 64", heads(2, 1, 128, 64), one(300)));
  all.push_back(itself("D 32", heads(2, 2, 32), one(130)));
  all.push_back(itself("D 4", heads(3, 1, 4), one(70)));
  all.push_back(itself("D 40, six heads", heads(6, 1, 40), one(66)));
  all.push_back(itself("D 256", heads(1, 1, 256), one(65)));
  all.push_back(itself("V 8 of D 24", with_values(heads(4, 2, 24), 8), packed({70, 130})));
  all.push_back(itself("V 96 of D 16", with_values(heads(4, 1, 16, 50), 96), packed({70, 300})));
  all.push_back(itself("V 128 of D 192", with_values(heads(2, 2, 192), 128), one(130)));
  all.push_back(itself("V 5 of D 3", with_values(heads(2, 1, 3), 5), packed({64, 3, 9})));
  all.push_back({"decode, V 40 of D 24",
                 with_values(heads(6, 2, 24), 40),
                 {{0, 1, 99, 0}, {1, 2, 76, 2}},
                 {{0, 100, 0, 0}, {100, 78, 0, 2}},
                 200});
  all.push_back(itself("rows", heads(2, 1, 16), packed({512, 512})));
  all.push_back(itself("documents", heads(4, 2, 16), packed({10, 1, 64, 130, 3, 60, 300, 2})));
  all.push_back(itself("documents, window 20", heads(2, 1, 16, 20), packed({10, 70, 1, 130, 33})));
  all.push_back({"chunked prefill", heads(4, 2, 16), {{0, 40, 100, 7}}, {{5, 140, 0, 7}}, 150});
  all.push_back({"decode",
                 heads(8, 2, 24),
                 {{0, 1, 99, 0}, {1, 1, 0, 1}, {2, 2, 76, 2}},
                 {{0, 100, 0, 0}, {100, 1, 0, 1}, {200, 78, 0, 2}},
                 300});
  all.push_back(
      {"decode, window 9, six heads", heads(6, 1, 64, 9), {{0, 1, 99, 4}}, {{0, 100, 0, 4}}, 128});
  all.push_back({"pieces in any order",
                 heads(2, 1, 16),
                 {{0, 50, 150, 1}, {50, 50, 0, 1}, {100, 30, 5, 0}},
                 {{0, 70, 130, 1}, {70, 35, 0, 0}, {105, 50, 0, 1}, {155, 80, 50, 1}},
                 240});
  all.push_back({"pieces, window 60",
                 heads(2, 1, 16, 60),
                 {{0, 100, 100, 1}},
                 {{0, 100, 0, 1}, {100, 100, 100, 1}},
                 200});
  return all;
}

struct Tensors {
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  Attention call(const AttentionCase& c) const {
    return {.shape = c.shape, .q = q, .k = k, .v = v, .out = out, .lse_TN = lse};
  }
  std::vector<Output> outputs() const {
    return {{"out", out}, {"lse", lse}, {"dq", dq}, {"dk", dk}, {"dv", dv}};
  }
};

Tensors make_tensors(Bench& bench, const AttentionCase& c) {
  const int64_t T = Sequence(c.queries).num_tokens();
  const auto& [N, K, D, V, window, scale, partial] = c.shape;
  const Shape q{T, N * D}, k{c.key_rows, K * D}, v{c.key_rows, K * V}, out{T, N * V};
  return {bench.product("q", q), bench.product("k", k),
          bench.product("v", v), bench.product("dout", out),
          bench.product(out),    bench.stream({T, N}),
          bench.stream(q),       bench.stream(k),
          bench.stream(v)};
}

void forward(const Context& context, const AttentionCase& c, const Tensors& r) {
  attention_forward(context, Sequence(c.queries), c.keys, r.call(c));
}

void backward(const Context& context, const AttentionCase& c, const Tensors& r) {
  attention_backward(context, Sequence(c.queries), c.keys, r.call(c),
                     {.dout = r.dout, .dq = r.dq, .dk = r.dk, .dv = r.dv});
}

// Forward and backward in a workspace that holds the packed blocks of every case.
void run(const Bench& bench, const AttentionCase& c, const Tensors& r) {
  Allocator allocator(Device::kCpu);
  Arena workspace(allocator, 1 << 21, Tag::kWorkspace);
  Context context = bench.context();
  context.workspace = &workspace;
  forward(context, c, r);
  backward(context, c, r);
}

// bf16 paths round probabilities, their gradients and the output; fp32 ones sum in another order.
void expect_near(const Output& got, const Tensor& want_tensor, DType product,
                 const std::string& what) {
  const std::vector<double> values = values_of(got.tensor), want = values_of(want_tensor);
  const double bound = (product == DType::kBF16 ? 0.02 : 2e-5) * std::max(0.1, largest(want));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(values[i] - want[i]), bound)
        << what << ": " << got.name << "[" << i << "] is " << values[i] << ", expected " << want[i];
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (values[i] - want[i]) * (values[i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(error), (product == DType::kBF16 ? 0.01 : 1e-5) * std::sqrt(size) + 1e-6)
      << what << ": " << got.name << " as a whole";
}

void expect_paths(const AttentionCase& c, DType product, const std::vector<Output>& want) {
  const Isa best = isa();
  for (const Isa path : supported_isas()) {
    select_isa(path);
    const std::string what = fmt::format("{}, {} {}", c.name, name_of(path), name_of(product));
    std::vector<std::vector<double>> first;
    for (const int num_threads : {1, 3}) {
      Bench bench({DType::kF32, product}, false, num_threads);
      const Tensors r = make_tensors(bench, c);
      run(bench, c, r);
      const std::vector<Output> outputs = r.outputs();
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (num_threads == 1) {
          expect_near(outputs[i], want[i].tensor, product, what);
          first.push_back(values_of(outputs[i].tensor));
        } else {
          EXPECT_EQ(values_of(outputs[i].tensor), first[i]) << what << ": " << outputs[i].name;
        }
      }
    }
  }
  select_isa(best);
}

TEST(Attention, EveryPathAgreesWithTheReference) {
  for (const AttentionCase& c : attention_cases()) {
    Bench exact;
    const Tensors want = make_tensors(exact, c);
    run(exact, c, want);
    for (const DType product : {DType::kF32, DType::kBF16})
      expect_paths(c, product, want.outputs());
    if (HasFatalFailure()) return;
  }
}

// The softmax as the formula reads, with a T x T matrix.
TEST(Attention, ReferenceIsTheFormula) {
  for (const AttentionCase& c : attention_cases()) {
    Bench bench;
    const Tensors r = make_tensors(bench, c);
    const Sequence queries(c.queries);
    forward(bench.context(), c, r);
    const int64_t N = c.shape.N, K = c.shape.K, D = c.shape.D, V = c.shape.V;
    const double *q = r.q.as<double>(), *k = r.k.as<double>(), *v = r.v.as<double>();
    int64_t pairs = 0;
    for (const Segment& query : c.queries) {
      for (int64_t i = 0; i < query.length; ++i) {
        for (int64_t h = 0; h < N; ++h) {
          double sum = 0;
          std::vector<double> out(size_t(V), 0.0);
          for (const Segment& key : c.keys) {
            for (int64_t s = 0; s < key.length; ++s) {
              const int64_t distance = query.position + i - (key.position + s);
              if (key.document != query.document || distance < 0) continue;
              if (c.shape.window > 0 && distance >= c.shape.window) continue;
              pairs += h == 0;
              const int64_t th = ((query.row + i) * N + h) * D,
                            row = (key.row + s) * K + h / (N / K);
              const double score =
                  std::inner_product(q + th, q + th + D, k + row * D, 0.0) * c.shape.scale;
              sum += std::exp(score);
              for (int64_t d = 0; d < V; ++d) out[d] += std::exp(score) * v[row * V + d];
            }
          }
          const int64_t th = (query.row + i) * N + h;
          ASSERT_NEAR(r.lse.as<double>()[th], std::log(sum), 1e-12) << c.name;
          for (int64_t d = 0; d < V; ++d)
            ASSERT_NEAR(r.out.as<double>()[th * V + d], out[d] / sum, 1e-12) << c.name;
        }
      }
    }
    EXPECT_EQ(visible_pairs(queries, c.keys, c.shape.window), pairs) << c.name;
  }
}

// By the definition, over segments that begin anywhere in their documents.
TEST(Attention, VisiblePairsAreThoseOfEveryRow) {
  const Rng random(7, "segments");
  uint64_t drawn = 0;
  const auto below = [&](int64_t n) { return int64_t(random.below(drawn++, uint64_t(n))); };
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<Segment> queries, keys;
    int64_t rows = 0;
    for (int s = 0; s < 5; ++s) {
      queries.push_back({rows, 1 + below(9), below(12), below(3)});
      rows += queries.back().length;
      keys.push_back({below(20), below(9), below(12), below(3)});
    }
    const int64_t window = below(3) == 0 ? 0 : 1 + below(14);
    int64_t pairs = 0;
    for (const Segment& query : queries)
      for (const Segment& key : keys)
        for (int64_t i = 0; i < query.length && key.document == query.document; ++i) {
          const RowRange seen = visible_rows(key, query.position + i, window);
          pairs += std::max<int64_t>(seen.end - seen.begin, 0);
        }
    EXPECT_EQ(visible_pairs(Sequence(queries), keys, window), pairs) << turn;
  }
}

// Their number may be that of a batch that nobody can run; a plan is to say so at once.
TEST(Attention, VisiblePairsOfManyDocumentsTakeNoTime) {
  const Sequence rows = Sequence::rows(200'000, 512);
  EXPECT_EQ(visible_pairs(rows, rows.segments(), 0), int64_t(200'000) * 512 * 513 / 2);
}

TEST(Attention, GradientsAreThoseOfFiniteDifferences) {
  for (const AttentionCase& c : {itself("window", heads(4, 2, 4, 3), packed({5, 1, 4})),
                                 itself("V 2", with_values(heads(4, 2, 4), 2), packed({5, 4})),
                                 AttentionCase{"pieces",
                                               heads(2, 1, 4),
                                               {{0, 3, 4, 1}, {3, 2, 0, 1}},
                                               {{0, 3, 4, 1}, {4, 4, 0, 1}},
                                               9}}) {
    Bench bench;
    const Tensors r = make_tensors(bench, c);
    run(bench, c, r);
    const auto loss = [&] {
      forward(bench.context(), c, r);
      return dot(r.out, r.dout);
    };
    const std::vector<double> dq = values_of(r.dq), dk = values_of(r.dk), dv = values_of(r.dv);
    expect_gradient(c.name + " q", r.q, dq, loss);
    expect_gradient(c.name + " k", r.k, dk, loss);
    expect_gradient(c.name + " v", r.v, dv, loss);
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  for (const DType product : {DType::kF32, DType::kBF16}) {
    AttentionCase c = itself("large", heads(2, 1, 8), one(70));
    c.shape.scale = 100.0;
    Bench exact, bench({DType::kF32, product}, false);
    const Tensors want = make_tensors(exact, c), r = make_tensors(bench, c);
    run(exact, c, want);
    run(bench, c, r);
    expect_near({"out", r.out}, want.out, product, c.name);
    expect_near({"lse", r.lse}, want.lse, product, c.name);
  }
}

TEST(Attention, NotANumberIsNotHidden) {
  const AttentionCase c = itself("NaN", heads(2, 1, 8), one(70));
  for (const DType product : {DType::kF32, DType::kBF16}) {
    Bench bench({DType::kF32, product}, false);
    const Tensors r = make_tensors(bench, c);
    if (product == DType::kF32)
      r.k.as<float>()[66 * 8] = NAN;
    else
      r.k.as<bf16>()[66 * 8] = bf16(NAN);
    run(bench, c, r);
    const std::vector<double> out = values_of(r.out);
    EXPECT_FALSE(std::isnan(out[65 * 16]));
    EXPECT_TRUE(std::isnan(out[66 * 16]));
  }
}

// The e^x of the bf16 paths: one visible key at a time, so that the sums hold one term.
TEST(Attention, BoundedScoresKeepTheirAccuracy) {
  using cpu::kBlock;
  cpu::BlockMask mask{};
  mask.columns[0] = 16;
  for (const Isa path : supported_isas()) {
    select_isa(path);
    for (double x = -59.9; x < 60; x += 0.0317) {
      std::vector<float> s(kBlock, 1000.0f);  // masked, hence no reason to refuse
      std::vector<bf16> p(kBlock);
      const int32_t visible = int32_t(std::abs(x) * 16) % 16;
      mask.begin[0] = visible;
      mask.end[0] = visible + 1;
      s[size_t(visible)] = float(2 * x);
      cpu::RowSums sums{};
      ASSERT_TRUE(cpu::exp_block(mask, 1, 0.5f, s.data(), &sums, p.data())) << x;
      const double want = std::exp(double(s[size_t(visible)]) / 2);
      ASSERT_NEAR(cpu::sum_lanes(sums.exact) / want, 1.0, 1.2e-5) << name_of(path) << " " << x;
      ASSERT_NEAR(float(p[size_t(visible)]) / want, 1.0, 0.004) << name_of(path) << " " << x;
      ASSERT_EQ(cpu::sum_lanes(sums.rounded), float(p[size_t(visible)]))
          << name_of(path) << " " << x;
    }
    std::vector<float> s(kBlock, -121.0f);
    std::vector<bf16> p(kBlock);
    cpu::RowSums sums{};
    EXPECT_FALSE(cpu::exp_block(mask, 1, 0.5f, s.data(), &sums, p.data())) << name_of(path);
  }
  select_isa(supported_isas().back());
}

// A dry run takes the same workspace, counts the work and touches nothing.
TEST(Attention, MetaCountsWorkAndWorkspace) {
  for (const AttentionCase& c :
       {itself("rows", heads(4, 2, 16), packed({100, 100})),
        itself("V 40", with_values(heads(4, 2, 16), 40), packed({100, 100})),
        attention_cases().back()}) {
    const Sequence queries(c.queries);
    Trace trace;
    trace.start();
    Arena counted(Device::kMeta);
    Context meta;
    meta.device = Device::kMeta;
    meta.workspace = &counted;
    meta.trace = &trace;
    const auto absent = [](DType dtype, const Shape& shape) {
      return Tensor{nullptr, dtype, Device::kMeta, shape};
    };
    const int64_t T = queries.num_tokens();
    const auto& [N, K, D, V, window, scale, partial] = c.shape;
    const Shape q_shape{T, N * D}, k_shape{c.key_rows, K * D}, v_shape{c.key_rows, K * V};
    const Tensor out = absent(DType::kBF16, {T, N * V});
    const Tensors dry{.q = absent(DType::kBF16, q_shape),
                      .k = absent(DType::kBF16, k_shape),
                      .v = absent(DType::kBF16, v_shape),
                      .dout = out,
                      .out = out,
                      .lse = absent(DType::kF32, {T, N}),
                      .dq = absent(DType::kF32, q_shape),
                      .dk = absent(DType::kF32, k_shape),
                      .dv = absent(DType::kF32, v_shape)};
    forward(meta, c, dry);
    backward(meta, c, dry);
    const int64_t pairs = visible_pairs(queries, c.keys, window) * N;
    ASSERT_EQ(calls_of(trace).size(), 2u);
    EXPECT_EQ(calls_of(trace)[0].cost.flop, (2 * D + 2 * V) * pairs);
    EXPECT_EQ(calls_of(trace)[1].cost.flop, (6 * D + 4 * V) * pairs);

    Bench bench({DType::kF32, DType::kBF16}, false, 2);
    Allocator allocator(Device::kCpu);
    Arena exact(allocator, counted.peak_bytes(), Tag::kWorkspace);
    Context context = bench.context();
    context.workspace = &exact;
    const Tensors r = make_tensors(bench, c);
    forward(context, c, r);
    backward(context, c, r);
    EXPECT_EQ(exact.peak_bytes(), counted.peak_bytes());
  }
}

}  // namespace
}  // namespace ashlar::kernels
