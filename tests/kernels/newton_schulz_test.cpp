#include "ashlar/kernels/newton_schulz.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

struct NewtonSchulzStage {
  explicit NewtonSchulzStage(int num_threads = 2) : threads(num_threads) {
    context.threads = &threads;
    context.workspace = &workspace;
  }
  ~NewtonSchulzStage() { select_isa(supported_isas().back()); }
  Threads threads;
  Allocator allocator{Device::kCpu};
  Arena workspace{allocator, 16 << 20, Tag::kWorkspace};
  Context context;
};

std::vector<double> orthogonalized(DType compute, int64_t G, int64_t M, int64_t N,
                                   const std::vector<double>& x, int steps = 5, int num_threads = 2,
                                   bool reference = false) {
  NewtonSchulzStage stage(num_threads);
  stage.context.reference = reference;
  const OwnedTensor exact = make_tensor(stage.allocator, DType::kF64, {G, M, N}, Tag::kInput);
  const OwnedTensor typed = make_tensor(
      stage.allocator, compute == DType::kF64 ? DType::kF64 : DType::kF32, {G, M, N}, Tag::kInput);
  std::copy(x.begin(), x.end(), exact.tensor.as<double>());
  copy_convert(exact.tensor, typed.tensor);
  orthogonalize(stage.context, compute, typed.tensor, steps);
  copy_convert(typed.tensor, exact.tensor);
  return {exact.tensor.as<double>(), exact.tensor.as<double>() + G * M * N};
}

std::vector<double> random(int64_t count, std::string_view name) {
  const Rng rng(3, name);
  std::vector<double> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01 * rng.normal(i);
  return x;
}

// The definition, written out: X <- X / (norm + 1e-7), then a X + b (X X^T) X + c (X X^T)^2 X.
std::vector<double> definition(int64_t M, int64_t N, std::vector<double> x, int steps = 5) {
  const auto m = size_t(M), n = size_t(N);
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (double& v : x) v /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < steps; ++step) {
    std::vector<double> gram(m * m), once(m * n), twice(m * n);
    for (size_t i = 0; i < m; ++i)
      for (size_t j = 0; j < m; ++j)
        for (size_t k = 0; k < n; ++k) gram[i * m + j] += x[i * n + k] * x[j * n + k];
    const auto times_gram = [&](const std::vector<double>& from, std::vector<double>& to) {
      for (size_t i = 0; i < m; ++i)
        for (size_t k = 0; k < m; ++k)
          for (size_t j = 0; j < n; ++j) to[i * n + j] += gram[i * m + k] * from[k * n + j];
    };
    times_gram(x, once);
    times_gram(once, twice);
    for (size_t i = 0; i < x.size(); ++i) x[i] = kA * x[i] + kB * once[i] + kC * twice[i];
  }
  return x;
}

double relative_difference(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], bound) << "element " << i;
}

TEST(NewtonSchulz, KnownMatrices) {
  const DType f64 = DType::kF64;
  expect_near(orthogonalized(f64, 1, 2, 2, {1, 2, 3, 4}),
              {-0.680660990, 0.825539610, 0.741295418, 0.259440027}, 1e-8);
  expect_near(orthogonalized(f64, 1, 2, 3, {1, 2, 3, 4, 5, 6}),
              {-0.568290110, 0.057741943, 0.683773996, 0.563354698, 0.405612831, 0.247870965},
              1e-8);
  expect_near(orthogonalized(f64, 1, 3, 2, {1, 4, 2, 5, 3, 6}),
              {-0.568290110, 0.563354698, 0.057741943, 0.405612831, 0.683773996, 0.247870965},
              1e-8);
  expect_near(orthogonalized(f64, 1, 2, 2, {1, 0, 0, 1}), {1.108111210, 0, 0, 1.108111210}, 1e-8);
}

// A 1 x 1 matrix is scaled to one first; a diagonal one shows the map of each singular value.
TEST(NewtonSchulz, SingularValuesFollowTheScalarMap) {
  for (const double s : {0.001, 0.01, 0.05, 0.1, 0.5}) {
    double mapped = s;
    for (int step = 0; step < 5; ++step)
      mapped = kA * mapped + kB * std::pow(mapped, 3) + kC * std::pow(mapped, 5);
    const double other = std::sqrt(1 - s * s);  // Frobenius norm 1
    const std::vector<double> x = orthogonalized(DType::kF64, 1, 2, 2, {s, 0, 0, other});
    EXPECT_NEAR(x[0], mapped, 1e-6) << s;
    EXPECT_NEAR(x[1], 0, 1e-15);
  }
  EXPECT_NEAR(orthogonalized(DType::kF64, 1, 1, 1, {-7})[0], -0.696436, 1e-6);
  EXPECT_NEAR(orthogonalized(DType::kF64, 1, 2, 2, {0.1, 0, 0, std::sqrt(0.99)})[0], 0.712120,
              1e-6);
}

struct MatrixDims {
  int64_t M, N;
};
const std::vector<MatrixDims> kMatrixDims = {{1, 1},    {1, 17},   {17, 1},  {3, 65},
                                             {65, 3},   {33, 31},  {32, 64}, {100, 40},
                                             {40, 100}, {40, 600}, {600, 33}};

TEST(NewtonSchulz, EveryPathFollowsTheDefinition) {
  for (const MatrixDims& d : kMatrixDims) {
    const std::vector<double> x = random(d.M * d.N, "x"), want = definition(d.M, d.N, x),
                              want_once = definition(d.M, d.N, x, 1);
    EXPECT_LT(relative_difference(orthogonalized(DType::kF64, 1, d.M, d.N, x), want), 1e-12);
    EXPECT_LT(relative_difference(orthogonalized(DType::kF32, 1, d.M, d.N, x, 5, 2, true), want),
              2e-5);
    for (const Isa isa : supported_isas()) {
      SCOPED_TRACE(fmt::format("{} {} x {}", name_of(isa), d.M, d.N));
      select_isa(isa);
      EXPECT_LT(relative_difference(orthogonalized(DType::kF32, 1, d.M, d.N, x), want), 2e-5);
      select_isa(isa);
      // bf16 keeps 8 bits: singular values near zero are pushed up by different noise.
      EXPECT_LT(relative_difference(orthogonalized(DType::kBF16, 1, d.M, d.N, x), want), 0.1);
      select_isa(isa);  // one step: rounding only
      EXPECT_LT(relative_difference(orthogonalized(DType::kBF16, 1, d.M, d.N, x, 1), want_once),
                0.01);
    }
  }
}

// On tiles, too: every update permutes columns of X, which must come home after any number.
TEST(NewtonSchulz, EveryNumberOfStepsFollowsTheDefinition) {
  for (const int steps : {0, 1, 2, 3, 7})
    for (const MatrixDims& d : {MatrixDims{40, 100}, MatrixDims{100, 40}, MatrixDims{40, 40}}) {
      SCOPED_TRACE(fmt::format("{} steps {} x {}", steps, d.M, d.N));
      const std::vector<double> x = random(d.M * d.N, "x"), want = definition(d.M, d.N, x, steps);
      EXPECT_LT(relative_difference(orthogonalized(DType::kF32, 1, d.M, d.N, x, steps), want),
                2e-5);
      EXPECT_LT(relative_difference(orthogonalized(DType::kBF16, 1, d.M, d.N, x, steps), want),
                0.1);
    }
}

// Rank three plus noise of a relative size of 1e-5, far below what A = X X^T resolves in fp32: the
// three directions are exact, and the noise stays as small as the definition leaves it.
TEST(NewtonSchulz, TinySingularValuesStayTame) {
  for (const MatrixDims& d : {MatrixDims{40, 160}, MatrixDims{160, 40}}) {
    const std::vector<double> u = random(d.M * 3, "u"), v = random(3 * d.N, "v");
    std::vector<double> x = random(d.M * d.N, "noise");
    for (int64_t i = 0; i < d.M; ++i)
      for (int64_t j = 0; j < d.N; ++j) {
        double& element = x[size_t(i * d.N + j)];
        element *= 1e-7;
        for (int64_t r = 0; r < 3; ++r) element += u[size_t(i * 3 + r)] * v[size_t(r * d.N + j)];
      }
    const std::vector<double> want = definition(d.M, d.N, x);
    EXPECT_LT(relative_difference(orthogonalized(DType::kF32, 1, d.M, d.N, x), want), 1e-2);
    EXPECT_LT(relative_difference(orthogonalized(DType::kF32, 1, d.M, d.N, x, 5, 2, true), want),
              1e-2);
  }
}

// Singular values of the result: X X^T is near the identity for a well-conditioned X, in bf16 too.
TEST(NewtonSchulz, ResultIsNearlyOrthogonal) {
  constexpr int64_t M = 32, N = 256;
  const std::vector<double> y = orthogonalized(DType::kBF16, 1, M, N, random(M * N, "x"));
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < M; ++j) {
      double dot = 0;
      for (int64_t k = 0; k < N; ++k) dot += y[size_t(i * N + k)] * y[size_t(j * N + k)];
      if (i == j)
        EXPECT_NEAR(dot, 1, 0.5) << i;  // the map lands in [0.68, 1.2]
      else
        EXPECT_NEAR(dot, 0, 0.25) << i << " " << j;
    }
}

// A symmetric X stays symmetric (every polynomial of it is), though only halves of A and A^2 are
// computed.
TEST(NewtonSchulz, SymmetricStaysSymmetric) {
  constexpr int64_t M = 70;
  std::vector<double> x = random(M * M, "x");
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < i; ++j) x[size_t(i * M + j)] = x[size_t(j * M + i)];
  for (const DType compute : {DType::kF64, DType::kF32}) {
    const std::vector<double> y = orthogonalized(compute, 1, M, M, x);
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < i; ++j)
        EXPECT_NEAR(y[size_t(i * M + j)], y[size_t(j * M + i)],
                    compute == DType::kF64 ? 1e-13 : 1e-5);
  }
}

// A stack gives what its matrices give alone, bit for bit, for any thread count and either way of
// sharing work.
TEST(NewtonSchulz, StacksAndThreadsKeepTheBits) {
  for (const MatrixDims& d : {MatrixDims{65, 33}, MatrixDims{33, 130}, MatrixDims{70, 600}}) {
    for (const Isa isa : supported_isas())
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(fmt::format("{} {} {} x {}", name_of(isa), name_of(compute), d.M, d.N));
        constexpr int64_t G = 4;
        const std::vector<double> x = random(G * d.M * d.N, "stack");
        select_isa(isa);
        const std::vector<double> one = orthogonalized(compute, G, d.M, d.N, x, 5, 1);
        for (const int threads : {2, 3}) {
          select_isa(isa);
          EXPECT_EQ(one, orthogonalized(compute, G, d.M, d.N, x, 5, threads));
        }
        const auto size = size_t(d.M * d.N);
        const std::vector<double> last(x.end() - int64_t(size), x.end());
        select_isa(isa);
        EXPECT_EQ(std::vector<double>(one.end() - int64_t(size), one.end()),
                  orthogonalized(compute, 1, d.M, d.N, last, 5, 3));
      }
  }
}

// Stacks of one call, one of them empty, give what each gives alone, on any number of threads.
TEST(NewtonSchulz, SeveralStacksKeepTheBits) {
  constexpr int64_t M = 40, N = 24, kCounts[] = {1, 0, 3, 2};
  for (const Isa isa : supported_isas())
    for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
      for (const int threads : {1, 2, 4}) {
        SCOPED_TRACE(fmt::format("{} {} {} threads", name_of(isa), name_of(compute), threads));
        select_isa(isa);
        NewtonSchulzStage stage(threads);
        const DType dtype = compute == DType::kF64 ? DType::kF64 : DType::kF32;
        const OwnedTensor all = make_tensor(stage.allocator, dtype, {6, M, N}, Tag::kInput),
                          alone = make_tensor(stage.allocator, dtype, {6, M, N}, Tag::kInput);
        const std::vector<double> x = random(6 * M * N, "stacks");
        for (int64_t i = 0; i < 6 * M * N; ++i)
          for (const Tensor& to : {all.tensor, alone.tensor})
            if (dtype == DType::kF64)
              to.as<double>()[i] = x[size_t(i)];
            else
              to.as<float>()[i] = float(x[size_t(i)]);
        std::vector<Tensor> stacks;
        int64_t begin = 0;
        for (const int64_t count : kCounts) {
          stacks.push_back(all.tensor.slice(begin, begin + count));
          begin += count;
        }
        orthogonalize(stage.context, compute, std::span<const Tensor>(stacks));
        for (int64_t g = 0; g < 6; ++g)
          orthogonalize(stage.context, compute, alone.tensor.slice(g, g + 1));
        EXPECT_EQ(std::memcmp(all.tensor.data, alone.tensor.data, size_t(all.tensor.bytes())), 0);
      }
}

TEST(NewtonSchulz, ZeroStaysZero) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
    for (const double v : orthogonalized(compute, 1, 5, 9, std::vector<double>(45, 0.0)))
      EXPECT_EQ(v, 0.0);
}

TEST(NewtonSchulz, MetaTakesTheSameWorkspace) {
  for (const DType compute : {DType::kF64, DType::kF32, DType::kBF16})
    for (const MatrixDims& d : kMatrixDims) {
      std::vector<int64_t> peaks;
      std::vector<int64_t> flop;
      for (const Device device : {Device::kCpu, Device::kMeta}) {
        Threads threads(2);
        Allocator allocator(device);
        Arena workspace(allocator, 4 << 20, Tag::kWorkspace);
        Trace trace;
        trace.start();
        const Context ctx{
            .device = device, .threads = &threads, .workspace = &workspace, .trace = &trace};
        const OwnedTensor x =
            make_tensor(allocator, compute == DType::kF64 ? DType::kF64 : DType::kF32,
                        {2, d.M, d.N}, Tag::kInput);
        orthogonalize(ctx, compute, x.tensor);
        peaks.push_back(workspace.peak_bytes());
        flop.push_back(total(calls_of(trace)).flop);
      }
      EXPECT_EQ(peaks[0], peaks[1]);
      const int64_t m = std::min(d.M, d.N), n = std::max(d.M, d.N);
      const int64_t direct = 5 * (3 * m * m * n + m * m * m), gram = 3 * m * m * n + 17 * m * m * m;
      EXPECT_EQ(flop, std::vector<int64_t>(
                          2, 2 * (compute == DType::kF32 ? std::min(direct, gram) : direct)));
    }
}

}  // namespace
}  // namespace ashlar::kernels
