// Every engine that this machine has, and the plain reference, against sums in double precision.
#include "ashlar/kernels/linear.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <numeric>
#include <vector>

#include "ashlar/core/rng.h"
#include "ashlar/kernels/isa.h"
#include "tests/kernels/kernel_case.h"

namespace ashlar::kernels {
namespace {

// Where a product runs.
struct Path {
  Isa isa;
  bool reference;
  std::string name() const {
    return fmt::format("{}{}", name_of(isa), reference ? " reference" : "");
  }
};

std::vector<Path> paths() {
  std::vector<Path> all = {{supported_isas().back(), true}};
  for (const Isa isa : supported_isas()) all.push_back({isa, false});
  return all;
}

class LinearStage {
 public:
  explicit LinearStage(const Path& path, int num_threads = 2) : threads_(num_threads) {
    select_isa(path.isa);
    context.threads = &threads_;
    context.workspace = &workspace_;
    context.reference = path.reference;
  }
  ~LinearStage() { select_isa(supported_isas().back()); }

  Tensor zeros(DType dtype, const Shape& shape) {
    return owned_.emplace_back(make_tensor(allocator_, dtype, shape, Tag::kInput)).tensor;
  }
  // Uniform in [-1, 1); the same numbers for one name, rounded to the type.
  Tensor random(DType dtype, const Shape& shape, std::string_view name) {
    const Tensor exact = zeros(DType::kF64, shape), tensor = zeros(dtype, shape);
    const Rng rng(7, name);
    for (int64_t i = 0; i < exact.numel(); ++i)
      exact.as<double>()[i] = 2 * rng.uniform(uint64_t(i)) - 1;
    copy_convert(exact, tensor);
    return tensor;
  }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor tensor = zeros(DType::kI32, {int64_t(values.size())});
    std::copy(values.begin(), values.end(), tensor.as<int32_t>());
    return tensor;
  }
  Operand operand(const Tensor& w, DType compute, bool for_backward = true) {
    Operand operand{w, {}, {}};
    const OperandLayout layout =
        operand_layout(context, operand.groups(), operand.n(), operand.k(), compute, for_backward);
    if (layout.forward_numel) operand.forward = zeros(layout.dtype, {layout.forward_numel});
    if (layout.backward_numel) operand.backward = zeros(layout.dtype, {layout.backward_numel});
    pack(context, operand);
    return operand;
  }

  Context context;

 private:
  Threads threads_;
  Allocator allocator_{Device::kCpu};
  Arena workspace_{allocator_, 8 << 20, Tag::kWorkspace};
  std::list<OwnedTensor> owned_;
};

double element(const Matrix& m, int64_t row, int64_t col) {
  const int64_t i = row * m.stride + col;
  if (m.dtype == DType::kF64) return reinterpret_cast<const double*>(m.data)[i];
  if (m.dtype == DType::kF32) return reinterpret_cast<const float*>(m.data)[i];
  return float(reinterpret_cast<const bf16*>(m.data)[i]);
}

using Element = std::function<double(int64_t, int64_t)>;
Element of(const Matrix& m) {
  return [m](int64_t row, int64_t col) { return element(m, row, col); };
}
Element transposed(const Element& e) {
  return [e](int64_t row, int64_t col) { return e(col, row); };
}

// The right value of an output element: the sum of products of (rounded) operands on top of the
// value before.
void expect_product(DType compute, int64_t K, const Element& a, const Element& b,
                    const Element& before, const Matrix& c) {
  const double unit = compute == DType::kF64 ? 1e-15 : 1e-7 * (4 + std::sqrt(double(K)));
  const auto operand = [&](const Element& e, int64_t rows, int64_t cols, bool by_rows) {
    std::vector<double> values;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        const double x = by_rows ? e(i, j) : e(j, i);
        values.push_back(compute == DType::kBF16 ? double(float(bf16(float(x)))) : x);
      }
    return values;
  };
  const std::vector<double> left = operand(a, c.rows, K, true),
                            right = operand(b, c.cols, K, false);
  for (int64_t i = 0; i < c.rows; ++i)
    for (int64_t j = 0; j < c.cols; ++j) {
      double sum = before(i, j), scale = std::abs(sum);
      for (int64_t k = 0; k < K; ++k) {
        const double product = left[size_t(i * K + k)] * right[size_t(j * K + k)];
        sum += product;
        scale += std::abs(product);
      }
      const double bound = unit * scale + (c.dtype == DType::kBF16 ? std::abs(sum) / 256 : 0);
      ASSERT_NEAR(element(c, i, j), sum, bound + 1e-30) << "at [" << i << ", " << j << "]";
    }
}

std::vector<double> snapshot(const Matrix& m) {
  std::vector<double> values;
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.cols; ++j) values.push_back(element(m, i, j));
  return values;
}
Element of(const std::vector<double>& values, int64_t cols) {
  return [&values, cols](int64_t row, int64_t col) { return values[size_t(row * cols + col)]; };
}
double nothing(int64_t, int64_t) {
  return 0;
}

struct Types {
  DType compute, x, y;
};
const std::vector<Types> kTypes = {
    {DType::kF32, DType::kF32, DType::kF32},    {DType::kF32, DType::kBF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kF32},  {DType::kBF16, DType::kF32, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32, DType::kBF16}};

struct LinearDims {
  int64_t T, N, K;
};

void check_dense(const Path& path, const Types& types, const LinearDims& d) {
  SCOPED_TRACE(fmt::format("{} compute {} x {} y {} T {} N {} K {}", path.name(),
                           name_of(types.compute), name_of(types.x), name_of(types.y), d.T, d.N,
                           d.K));
  const DType master = types.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  LinearStage run(path);
  const Operand w = run.operand(run.random(master, {d.N, d.K}, "w"), types.compute);
  const Matrix x = Matrix::of(run.random(types.x, {d.T, d.K}, "x"));
  const Matrix dy = Matrix::of(run.random(types.y, {d.T, d.N}, "dy"));
  const Element w_NK = of(Matrix::of(w.w));
  for (const bool accumulate : {false, true}) {
    const Matrix y = Matrix::of(run.random(types.y, {d.T, d.N}, "y"));
    const std::vector<double> y_before = snapshot(y);
    linear_forward(run.context, types.compute, x, w, y, accumulate);
    expect_product(types.compute, d.K, of(x), transposed(w_NK),
                   accumulate ? of(y_before, d.N) : nothing, y);

    const Matrix dx = Matrix::of(run.random(types.x, {d.T, d.K}, "dx"));
    const std::vector<double> dx_before = snapshot(dx);
    linear_backward_input(run.context, types.compute, dy, w, dx, accumulate);
    expect_product(types.compute, d.N, of(dy), w_NK, accumulate ? of(dx_before, d.K) : nothing, dx);
  }
  const Tensor dw = run.random(master, {d.N, d.K}, "dw");
  const std::vector<double> dw_before = snapshot(Matrix::of(dw));
  linear_backward_weight(run.context, types.compute, dy, x, dw);
  expect_product(types.compute, d.T, transposed(of(dy)), of(x), of(dw_before, d.K), Matrix::of(dw));
}

TEST(Linear, DenseOddShapes) {
  const std::vector<LinearDims> dims = {{1, 1, 1},    {1, 17, 3},  {3, 65, 17},  {17, 3, 65},
                                        {65, 33, 64}, {64, 96, 2}, {29, 15, 31}, {15, 64, 1},
                                        {33, 1, 34},  {1, 64, 64}, {31, 31, 32}, {128, 32, 7}};
  for (const Path& path : paths())
    for (const Types& types : kTypes)
      for (const LinearDims& d : dims) check_dense(path, types, d);
}

// Several tasks a product; rows a page apart (K 2048 in bf16, 1024 in fp32), which are copied.
TEST(Linear, DenseManyTasks) {
  for (const Path& path : paths())
    for (const Types& types : kTypes)
      for (const LinearDims& d :
           {LinearDims{257, 70, 40}, LinearDims{20, 40, 2048}, LinearDims{260, 3, 4300},
            LinearDims{36, 1024, 33}, LinearDims{5, 1100, 64}})
        check_dense(path, types, d);
}

TEST(Linear, DoublePrecision) {
  const Path reference{supported_isas().back(), false};
  for (const LinearDims& d : {LinearDims{1, 1, 1}, LinearDims{3, 65, 17}, LinearDims{65, 33, 70}})
    check_dense(reference, {DType::kF64, DType::kF64, DType::kF64}, d);
}

// Columns of wider matrices whose other columns are NaN, on both sides: nothing outside is read
// into a sum (K is padded inside) or written.
TEST(Linear, StridedViewsBetweenNaN) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  for (const Path& path : paths())
    for (const DType compute : {DType::kF32, DType::kBF16})
      for (const DType type : {DType::kF32, DType::kBF16})
        for (const int64_t K : {3, 31, 33, 64}) {
          SCOPED_TRACE(fmt::format("{} compute {} type {} K {}", path.name(), name_of(compute),
                                   name_of(type), K));
          constexpr int64_t T = 19, N = 37, kMargin = 5;
          LinearStage run(path);
          const auto view = [&](int64_t cols, std::string_view name) {
            const Tensor inner = run.random(DType::kF32, {T, cols}, name);
            const Tensor wide = run.zeros(DType::kF32, {T, cols + 2 * kMargin}),
                         typed = run.zeros(type, wide.shape);
            for (float& x : wide.span<float>()) x = nan;
            for (int64_t t = 0; t < T; ++t)
              std::memcpy(wide.as<float>() + t * wide.shape[1] + kMargin,
                          inner.as<float>() + t * cols, size_t(cols) * 4);
            copy_convert(wide, typed);
            return Matrix::of(typed).columns(kMargin, kMargin + cols);
          };
          const Operand w = run.operand(run.random(DType::kF32, {N, K}, "w"), compute);
          const Matrix x = view(K, "x"), dy = view(N, "dy"), y = view(N, "y"), dx = view(K, "dx");
          const Element w_NK = of(Matrix::of(w.w));
          linear_forward(run.context, compute, x, w, y);
          expect_product(compute, K, of(x), transposed(w_NK), nothing, y);
          linear_backward_input(run.context, compute, dy, w, dx);
          expect_product(compute, N, of(dy), w_NK, nothing, dx);
          const Tensor dw = run.zeros(DType::kF32, {N, K});
          linear_backward_weight(run.context, compute, dy, x, dw);
          expect_product(compute, T, transposed(of(dy)), of(x), nothing, Matrix::of(dw));
          for (const Matrix& m : {y, dx})
            for (int64_t t = 0; t < T; ++t) {
              EXPECT_TRUE(std::isnan(element(m, t, -1)));
              EXPECT_TRUE(std::isnan(element(m, t, m.cols)));
            }
        }
}

// A NaN in one token stays in that token's row.
TEST(Linear, NaNStaysInItsRow) {
  for (const Path& path : paths())
    for (const DType compute : {DType::kF32, DType::kBF16})
      for (const int64_t K : {17, 32, 50}) {
        LinearStage run(path);
        constexpr int64_t T = 40, N = 20, kBad = 21;
        const Operand w = run.operand(run.random(DType::kF32, {N, K}, "w"), compute);
        const Tensor x = run.random(DType::kF32, {T, K}, "x"), y = run.zeros(DType::kF32, {T, N});
        x.as<float>()[kBad * K + K - 1] = std::numeric_limits<float>::quiet_NaN();
        linear_forward(run.context, compute, Matrix::of(x), w, Matrix::of(y));
        for (int64_t t = 0; t < T; ++t)
          for (int64_t n = 0; n < N; ++n)
            ASSERT_EQ(std::isnan(y.as<float>()[t * N + n]), t == kBad)
                << path.name() << " K " << K << " row " << t;
      }
}

const std::vector<std::vector<int32_t>> kRouting = {{0, 0, 40, 40, 40}, {0, 40, 40, 40, 40},
                                                    {0, 0, 0, 0, 40},   {0, 1, 4, 21, 38},
                                                    {0, 0, 0, 0, 0},    {0, 7, 15, 16, 33}};

void check_grouped(const Path& path, const Types& types, const LinearDims& d,
                   const std::vector<int32_t>& rows) {
  SCOPED_TRACE(fmt::format("{} compute {} x {} y {} N {} K {} rows {}", path.name(),
                           name_of(types.compute), name_of(types.x), name_of(types.y), d.N, d.K,
                           fmt::join(rows, " ")));
  const int64_t G = int64_t(rows.size()) - 1;
  const DType master = types.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  LinearStage run(path);
  const Operand w = run.operand(run.random(master, {G, d.N, d.K}, "w"), types.compute);
  const Matrix x = Matrix::of(run.random(types.x, {d.T, d.K}, "x"));
  const Matrix y = Matrix::of(run.random(types.y, {d.T, d.N}, "y"));
  const Matrix dy = Matrix::of(run.random(types.y, {d.T, d.N}, "dy"));
  const Matrix dx = Matrix::of(run.random(types.x, {d.T, d.K}, "dx"));
  const Tensor dw = run.random(master, {G, d.N, d.K}, "dw");
  const std::vector<double> y_before = snapshot(y), dx_before = snapshot(dx),
                            dw_before = snapshot(Matrix::of(dw));
  const Tensor row_of_group = run.ints(rows);
  grouped_linear_forward(run.context, types.compute, x, w, row_of_group, y);
  grouped_linear_backward_input(run.context, types.compute, dy, w, row_of_group, dx);
  grouped_linear_backward_weight(run.context, types.compute, dy, x, row_of_group, dw);
  for (int64_t g = 0; g < G; ++g) {
    const int64_t begin = rows[size_t(g)], end = rows[size_t(g) + 1];
    const Element w_NK = of(Matrix::of(w.w).row_range(g * d.N, (g + 1) * d.N));
    expect_product(types.compute, d.K, of(x.row_range(begin, end)), transposed(w_NK), nothing,
                   y.row_range(begin, end));
    expect_product(types.compute, d.N, of(dy.row_range(begin, end)), w_NK, nothing,
                   dx.row_range(begin, end));
    const std::vector<double> before(dw_before.begin() + g * d.N * d.K,
                                     dw_before.begin() + (g + 1) * d.N * d.K);
    expect_product(types.compute, end - begin, transposed(of(dy.row_range(begin, end))),
                   of(x.row_range(begin, end)), of(before, d.K),
                   Matrix::of(dw).row_range(g * d.N, (g + 1) * d.N));
  }
  for (int64_t t = rows.back(); t < d.T; ++t) {  // rows of nobody are left alone
    EXPECT_EQ(element(y, t, 0), y_before[size_t(t * d.N)]);
    EXPECT_EQ(element(dx, t, d.K - 1), dx_before[size_t((t + 1) * d.K - 1)]);
  }
}

TEST(Linear, GroupedRows) {
  for (const Path& path : paths())
    for (const Types& types : kTypes)
      for (const auto& rows : kRouting)
        for (const LinearDims& d : {LinearDims{40, 33, 17}, LinearDims{40, 64, 32}})
          check_grouped(path, types, d, rows);
  check_grouped(paths().front(), {DType::kF64, DType::kF64, DType::kF64}, {40, 33, 17},
                kRouting[3]);
}

TEST(Linear, GroupedColumns) {
  for (const Path& path : paths())
    for (const Types& types : kTypes)
      for (const LinearDims& d :
           {LinearDims{21, 17, 9}, LinearDims{33, 64, 128}, LinearDims{5, 1, 31}}) {
        SCOPED_TRACE(
            fmt::format("{} compute {} N {} K {}", path.name(), name_of(types.compute), d.N, d.K));
        constexpr int64_t G = 3;
        LinearStage run(path);
        const Operand w = run.operand(run.random(DType::kF32, {G, d.N, d.K}, "w"), types.compute);
        const Matrix x = Matrix::of(run.random(types.x, {d.T, G * d.K}, "x"));
        const Matrix dy = Matrix::of(run.random(types.y, {d.T, G * d.N}, "dy"));
        const Matrix y = Matrix::of(run.random(types.y, {d.T, G * d.N}, "y"));
        const Matrix dx = Matrix::of(run.random(types.x, {d.T, G * d.K}, "dx"));
        const Tensor dw = run.zeros(DType::kF32, {G, d.N, d.K});
        blockdiag_linear_forward(run.context, types.compute, x, w, y);
        blockdiag_linear_backward_input(run.context, types.compute, dy, w, dx);
        blockdiag_linear_backward_weight(run.context, types.compute, dy, x, dw);
        for (int64_t g = 0; g < G; ++g) {
          const Element w_NK = of(Matrix::of(w.w).row_range(g * d.N, (g + 1) * d.N));
          const Element x_g = of(x.columns(g * d.K, (g + 1) * d.K)),
                        dy_g = of(dy.columns(g * d.N, (g + 1) * d.N));
          expect_product(types.compute, d.K, x_g, transposed(w_NK), nothing,
                         y.columns(g * d.N, (g + 1) * d.N));
          expect_product(types.compute, d.N, dy_g, w_NK, nothing,
                         dx.columns(g * d.K, (g + 1) * d.K));
          expect_product(types.compute, d.T, transposed(dy_g), x_g, nothing,
                         Matrix::of(dw).row_range(g * d.N, (g + 1) * d.N));
        }
      }
}

// All three passes of a dense and a grouped product, as bytes.
std::vector<std::vector<std::byte>> bits(const Path& path, const Types& types, int num_threads) {
  constexpr int64_t T = 300, N = 200, K = 129;
  LinearStage run(path, num_threads);
  const Tensor rows = run.ints({0, 7, 7, 220, 299});
  const Operand w = run.operand(run.random(DType::kF32, {N, K}, "w"), types.compute);
  const Operand stack = run.operand(run.random(DType::kF32, {4, N, K}, "stack"), types.compute);
  const Tensor x = run.random(types.x, {T, K}, "x"), dy = run.random(types.y, {T, N}, "dy");
  const Tensor y = run.zeros(types.y, {T, N}), dx = run.zeros(types.x, {T, K}),
               dw = run.zeros(DType::kF32, {N, K});
  const Tensor y_g = run.zeros(types.y, {T, N}), dx_g = run.zeros(types.x, {T, K}),
               dw_g = run.zeros(DType::kF32, {4, N, K});
  linear_forward(run.context, types.compute, Matrix::of(x), w, Matrix::of(y));
  linear_backward_input(run.context, types.compute, Matrix::of(dy), w, Matrix::of(dx));
  linear_backward_weight(run.context, types.compute, Matrix::of(dy), Matrix::of(x), dw);
  grouped_linear_forward(run.context, types.compute, Matrix::of(x), stack, rows, Matrix::of(y_g));
  grouped_linear_backward_input(run.context, types.compute, Matrix::of(dy), stack, rows,
                                Matrix::of(dx_g));
  grouped_linear_backward_weight(run.context, types.compute, Matrix::of(dy), Matrix::of(x), rows,
                                 dw_g);
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& t : {y, dx, dw, y_g, dx_g, dw_g}) all.emplace_back(t.data, t.data + t.bytes());
  return all;
}

TEST(Linear, BitsDoNotDependOnThreads) {
  for (const Path& path : paths())
    for (const Types& types : kTypes) {
      const auto one = bits(path, types, 1);
      EXPECT_EQ(one, bits(path, types, 2)) << path.name();
      EXPECT_EQ(one, bits(path, types, 3)) << path.name();
    }
}

// Weights that are only read forward may be packed in another form.
TEST(Linear, WeightsWithoutABackwardFormGiveTheSameBits) {
  constexpr int64_t G = 3;
  for (const Path& path : paths())
    for (const Types& types : kTypes)
      for (const LinearDims& d : {LinearDims{1, 33, 17}, {17, 20, 300}}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", path.name(), d.T, d.N, d.K));
        LinearStage run(path);
        const Tensor w = run.random(DType::kF32, {G, d.N, d.K}, "w"),
                     x = run.random(types.x, {d.T, G * d.K}, "x");
        std::vector<std::byte> first;
        for (const bool for_backward : {true, false}) {
          const Tensor y = run.zeros(types.y, {d.T, G * d.N});
          blockdiag_linear_forward(run.context, types.compute, Matrix::of(x),
                                   run.operand(w, types.compute, for_backward), Matrix::of(y));
          std::vector<std::byte> bits(y.data, y.data + y.bytes());
          if (for_backward)
            first = std::move(bits);
          else
            EXPECT_EQ(first, bits);
        }
      }
}

// A dry run takes the workspace that the real run takes, records the same cost and touches nothing.
TEST(Linear, MetaCountsWhatTheRealRunTakes) {
  constexpr int64_t T = 50, N = 33, K = 17, G = 4;
  const std::vector<int32_t> rows = {0, 7, 7, 30, 49};
  for (const Path& path : paths())
    for (const Types& types : kTypes) {
      SCOPED_TRACE(path.name());
      std::vector<int64_t> peaks;
      std::vector<Cost> costs;
      for (const Device device : {Device::kCpu, Device::kMeta}) {
        select_isa(path.isa);
        Threads threads(1);
        Allocator allocator(device);
        Arena workspace(allocator, 4 << 20, Tag::kWorkspace);
        Trace trace;
        trace.start();
        Context ctx{.device = device,
                    .threads = device == Device::kMeta ? nullptr : &threads,
                    .workspace = &workspace,
                    .reference = path.reference,
                    .trace = &trace};
        std::list<OwnedTensor> owned;
        const auto make = [&](DType dtype, const Shape& shape) {
          return owned.emplace_back(make_tensor(allocator, dtype, shape, Tag::kInput)).tensor;
        };
        const auto operand = [&](const Shape& shape) {
          Operand w{make(DType::kF32, shape), {}, {}};
          const OperandLayout layout =
              operand_layout(ctx, w.groups(), w.n(), w.k(), types.compute, true);
          if (layout.forward_numel) w.forward = make(layout.dtype, {layout.forward_numel});
          if (layout.backward_numel) w.backward = make(layout.dtype, {layout.backward_numel});
          pack(ctx, w);
          return w;
        };
        const Operand w = operand({N, K}), stack = operand({G, N, K});
        const Matrix x = Matrix::of(make(types.x, {T, K})), y = Matrix::of(make(types.y, {T, N}));
        const Tensor routing = make(DType::kI32, {G + 1});
        if (device == Device::kCpu) std::copy(rows.begin(), rows.end(), routing.as<int32_t>());
        linear_forward(ctx, types.compute, x, w, y);
        linear_backward_input(ctx, types.compute, y, w, x);
        linear_backward_weight(ctx, types.compute, y, x, w.w);
        grouped_linear_forward(ctx, types.compute, x, stack, routing, y);
        grouped_linear_backward_input(ctx, types.compute, y, stack, routing, x);
        grouped_linear_backward_weight(ctx, types.compute, y, x, routing, stack.w);
        const Matrix wide_x = Matrix::of(make(types.x, {T, G * K})),
                     wide_y = Matrix::of(make(types.y, {T, G * N}));
        blockdiag_linear_forward(ctx, types.compute, wide_x, stack, wide_y);
        blockdiag_linear_backward_input(ctx, types.compute, wide_y, stack, wide_x);
        blockdiag_linear_backward_weight(ctx, types.compute, wide_y, wide_x, stack.w);
        peaks.push_back(workspace.peak_bytes());
        costs.push_back(total(calls_of(trace)));
      }
      EXPECT_EQ(peaks[0], peaks[1]);
      EXPECT_EQ(costs[0].bytes, costs[1].bytes);
      EXPECT_EQ(costs[0].flop, costs[1].flop);
      EXPECT_EQ(costs[0].flop, 3 * 2 * T * N * K * (1 + 1 + G));
    }
  select_isa(supported_isas().back());
}

}  // namespace
}  // namespace ashlar::kernels
