// The products and the peak loop of AMX as they are compiled: by the CPU's own tiles where it has
// them, else trapped and emulated instruction by instruction (amx_emulation.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "ashlar/kernels/attention.h"
#include "ashlar/kernels/cpu/attention/tiles.h"
#include "ashlar/kernels/cpu/gemm/amx_tiles.h"
#include "ashlar/kernels/cpu/gemm/drive.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/amx_emulation.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

namespace amx = cpu::amx;
namespace gemm = cpu::gemm;
using gemm::Groups;

class Amx : public ::testing::Test {
 protected:
  static bool has(Isa isa) {
    const std::vector<Isa> all = supported_isas();
    return std::find(all.begin(), all.end(), isa) != all.end();
  }
  void SetUp() override {
    if (!has(Isa::kAvx512Bf16))
      GTEST_SKIP() << "operands of AMX are packed with AVX-512 BF16, which this CPU lacks";
    printf("tiles: %s\n", has(Isa::kAmx) ? "this CPU's own" : "emulated");
  }
  void TearDown() override { EXPECT_EQ(emulation_.fault(), nullptr) << emulation_.fault(); }
  bool emulated() const { return !has(Isa::kAmx); }

  testing_support::AmxEmulation emulation_;
  const gemm::Engine& engine_ = gemm::amx_engine();
};

// The operand of `ldtilecfg`: all 64 bytes, as `sttilecfg` gives them back.
[[gnu::target("amx-tile")]] void store_config(std::span<uint8_t, 64> config) {
  __asm__ volatile("sttilecfg %0" : "=m"(*reinterpret_cast<uint8_t(*)[64]>(config.data())));
}

TEST_F(Amx, TheWholeConfigurationReachesTheTiles) {
  alignas(64) std::array<uint8_t, 64> stored{}, expected{};
  expected[0] = 1;
  for (size_t tile = 0; tile < 8; ++tile) {
    expected[16 + 2 * tile] = 64;
    expected[48 + tile] = 16;
  }
  engine_.enter();
  store_config(stored);
  engine_.leave();
  EXPECT_EQ(stored, expected);
}

TEST_F(Amx, ThePeakLoopMultipliesAsOftenAsItClaims) {
  amx::spin(5);
  if (emulated()) {
    EXPECT_EQ(emulation_.num_instructions(), 2 + 5 * amx::kPeakChains);
  }
}

struct AmxDims {
  int64_t T, N, K;
};
constexpr AmxDims kAmxDims[] = {{1, 1, 1},      {1, 17, 3},     {3, 65, 17},    {17, 3, 65},
                                {16, 32, 32},   {65, 33, 64},   {29, 15, 31},   {33, 1, 34},
                                {31, 31, 32},   {48, 32, 96},   {32, 64, 33},   {97, 70, 40},
                                {20, 40, 2048}, {40, 1100, 33}, {530, 20, 100}, {270, 3, 4300}};

double at(const Matrix& m, int64_t row, int64_t col) {
  const int64_t i = row * m.stride + col;
  return m.dtype == DType::kF32 ? double(reinterpret_cast<const float*>(m.data)[i])
                                : double(float(reinterpret_cast<const bf16*>(m.data)[i]));
}

// c = before + sum over k of a(i, k) b(k, j), to the rounding of sums in fp32 and of c's type.
template <typename A, typename B>
void expect_product(int64_t K, A a, B b, double before, const Matrix& c) {
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) {
      double sum = before, scale = std::abs(before);
      for (int64_t k = 0; k < K; ++k) {
        sum += a(i, k) * b(k, j);
        scale += std::abs(a(i, k) * b(k, j));
      }
      const double rounding = c.dtype == DType::kBF16 ? std::abs(sum) / 256 : 0;
      ASSERT_NEAR(at(c, i, j), sum, 1e-7 * (4 + std::sqrt(double(K))) * scale + rounding + 1e-30)
          << "at [" << i << ", " << j << "]";
    }
}

// Two groups that own rows, all rows in one, and groups without rows.
std::vector<std::vector<int32_t>> routings(int64_t T) {
  const auto rows = int32_t(T);
  return {{0, rows}, {0, rows / 3, rows}, {0, 0, rows, rows}};
}

void check_products(const gemm::Engine& engine, const AmxDims& d, const std::vector<int32_t>& rows,
                    DType type, int num_threads) {
  SCOPED_TRACE(fmt::format("T {} N {} K {} groups {} {} threads {}", d.T, d.N, d.K, rows.size() - 1,
                           name_of(type), num_threads));
  Bench bench({DType::kF32, type}, false, num_threads);
  Allocator allocator(Device::kCpu);
  Arena workspace(allocator, 4 << 20, Tag::kWorkspace);
  Context ctx = bench.context();
  ctx.workspace = &workspace;
  const Groups groups{.count = int64_t(rows.size()) - 1, .own_rows = true, .row_of_group = rows};
  const Tensor w_GNK = bench.random(DType::kF32, "w", {groups.count, d.N, d.K});
  const Matrix x = Matrix::of(bench.product("x", {d.T, d.K})),
               dy = Matrix::of(bench.product("dy", {d.T, d.N})),
               y = Matrix::of(bench.product({d.T, d.N})),
               dx = Matrix::of(bench.product({d.T, d.K}));
  const Tensor dw_GNK = bench.zeros(DType::kF32, {groups.count, d.N, d.K});
  for (float& value : dw_GNK.span<float>()) value = 1;
  const auto packed = [&](int64_t columns, int64_t depth) {
    return bench.zeros(DType::kU8,
                       {groups.count * engine.num_panels(columns) * engine.panel_bytes(depth)});
  };
  const Tensor forward = packed(d.N, d.K), backward = packed(d.K, d.N);
  gemm::pack_operand(ctx, engine, {w_GNK, forward, backward});
  gemm::multiply(ctx, engine, groups, d.N, d.K, x, forward.data, y, false);
  gemm::multiply(ctx, engine, groups, d.K, d.N, dy, backward.data, dx, false);
  gemm::reduce(ctx, engine, groups, d.N, d.K, dy, x, dw_GNK.as<float>(), true);

  for (int64_t g = 0; g < groups.count; ++g) {
    const int64_t begin = rows[size_t(g)], end = rows[size_t(g) + 1];
    const Matrix w = Matrix::of(w_GNK.slice(g, g + 1).view({d.N, d.K}));
    const Matrix x_g = x.row_range(begin, end), dy_g = dy.row_range(begin, end);
    expect_product(
        d.K, [&](int64_t t, int64_t k) { return at(x_g, t, k); },
        [&](int64_t k, int64_t n) { return at(w, n, k); }, 0, y.row_range(begin, end));
    expect_product(
        d.N, [&](int64_t t, int64_t n) { return at(dy_g, t, n); },
        [&](int64_t n, int64_t k) { return at(w, n, k); }, 0, dx.row_range(begin, end));
    expect_product(
        end - begin, [&](int64_t n, int64_t t) { return at(dy_g, t, n); },
        [&](int64_t t, int64_t k) { return at(x_g, t, k); }, 1,
        Matrix::of(dw_GNK.slice(g, g + 1).view({d.N, d.K})));
  }
}

TEST_F(Amx, ProductsAreSumsOfProducts) {
  for (const AmxDims& d : kAmxDims)
    for (const auto& rows : routings(d.T))
      for (const DType type : {DType::kF32, DType::kBF16})
        for (const int num_threads : {1, 2})
          if (num_threads == 1 || d.T > 32) check_products(engine_, d, rows, type, num_threads);
  if (emulated()) {
    EXPECT_GT(emulation_.num_instructions(), 1000);
  }
}

// out, lse, dq, dk and dv of documents that end within units, by tiles or by the fp64 reference.
std::vector<std::vector<double>> attention_values(bool tiles, double scale) {
  constexpr int64_t kN = 4, kK = 2, kD = 40, kV = 24, kT = 75;
  Bench bench(tiles ? Precision{DType::kF32, DType::kBF16} : Precision{});
  Allocator allocator(Device::kCpu);
  Arena workspace(allocator, 2 << 20, Tag::kWorkspace);
  Context ctx = bench.context();
  ctx.workspace = &workspace;
  const Sequence queries({{0, 33, 0, 0}, {33, 42, 0, 1}});
  const Attention x{.shape = {kN, kK, kD, kV, 20, scale},
                    .q = bench.product("q", {kT, kN * kD}),
                    .k = bench.product("k", {kT, kK * kD}),
                    .v = bench.product("v", {kT, kK * kV}),
                    .out = bench.product({kT, kN * kV}),
                    .lse_TN = bench.stream({kT, kN})};
  const AttentionGradients gradients{.dout = bench.product("dout", {kT, kN * kV}),
                                     .dq = bench.stream({kT, kN * kD}),
                                     .dk = bench.stream({kT, kK * kD}),
                                     .dv = bench.stream({kT, kK * kV})};
  if (tiles) {
    const cpu::AttentionArgs call{x, ctx, queries, queries.segments()};
    cpu::attention_forward_tiles(call);
    cpu::attention_backward_tiles(call, gradients);
  } else {
    attention_forward(ctx, queries, queries.segments(), x);
    attention_backward(ctx, queries, queries.segments(), x, gradients);
  }
  return {values_of(x.out), values_of(x.lse_TN), values_of(gradients.dq), values_of(gradients.dk),
          values_of(gradients.dv)};
}

TEST_F(Amx, AttentionAgreesWithTheReference) {
  for (const double scale : {0.16, 30.0}) {  // large scores need the maximum of each row
    const auto want = attention_values(false, scale), got = attention_values(true, scale);
    for (size_t i = 0; i < want.size(); ++i) {
      double error = 0, size = 0;
      for (size_t k = 0; k < want[i].size(); ++k) {
        error += (got[i][k] - want[i][k]) * (got[i][k] - want[i][k]);
        size += want[i][k] * want[i][k];
      }
      EXPECT_LE(std::sqrt(error), 0.01 * std::sqrt(size)) << "output " << i << ", scale " << scale;
    }
  }
  if (emulated()) {
    EXPECT_GT(emulation_.num_instructions(), 1000);
  }
}

}  // namespace
}  // namespace ashlar::kernels
