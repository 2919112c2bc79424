// Products of groups, which own rows (experts) or columns (heads).
#include "ashlar/kernels/gpu/launch.h"
#include "tests/kernels/gpu/product_case.h"

namespace ashlar::kernels {
namespace {

struct GroupCase {
  std::string name;
  int64_t G, T, N, K;
  std::vector<int32_t> rows = {};            // row_of_group; none: groups own columns
  DType x = DType::kBF16, y = DType::kBF16;  // of products in bf16
  int64_t beside = 0;                        // columns of other parts, before and behind
  bool accumulate = false;
  bool own_rows() const { return !rows.empty(); }
  int64_t groups_across() const { return own_rows() ? 1 : G; }
};

// Groups with these numbers of rows, and rows of no group after them.
GroupCase groups_of_rows(std::string name, int64_t N, int64_t K, const std::vector<int32_t>& counts,
                         int64_t rows_of_none) {
  GroupCase c{.name = std::move(name), .G = int64_t(counts.size()), .T = 0, .N = N, .K = K};
  c.rows = {0};
  for (const int32_t count : counts) c.rows.push_back(c.rows.back() + count);
  c.T = c.rows.back() + rows_of_none;
  return c;
}

struct Activations {
  Tensor whole;
  Matrix matrix;
};
Activations group_columns(Place& p, const GroupCase& c, DType type, const char* name,
                          int64_t width) {
  if (p.product() != DType::kBF16) type = p.wide();
  const Tensor whole = p.random(type, name, {c.T, c.groups_across() * width + 2 * c.beside});
  return {whole, Matrix::of(whole).columns(c.beside, c.beside + c.groups_across() * width)};
}

Operand stack_of_weights(Place& p, const GroupCase& c) {
  Operand w{p.random(p.wide(), "w", {c.G, c.N, c.K}), {}, {}};
  const OperandLayout layout = operand_layout(p.context(), c.G, c.N, c.K, p.product(), true);
  if (layout.forward_numel > 0) w.forward = p.unset(layout.dtype, {layout.forward_numel});
  pack(p.context(), w);
  return w;
}

// All three passes.  The whole of y and dx: what belongs to no group stays as it was.
std::vector<Output> run_groups(Place& p, const GroupCase& c) {
  const Context& ctx = p.context();
  const Operand w = stack_of_weights(p, c);
  const Tensor ends = c.own_rows() ? p.ints(c.rows) : Tensor();
  const Activations x = group_columns(p, c, c.x, "x", c.K), y = group_columns(p, c, c.y, "y", c.N),
                    dy = group_columns(p, c, c.y, "dy", c.N),
                    dx = group_columns(p, c, c.x, "dx", c.K);
  const Tensor dw = p.random(p.wide(), "dw", {c.G, c.N, c.K});
  const DType compute = p.product();
  if (c.own_rows()) {
    grouped_linear_forward(ctx, compute, x.matrix, w, ends, y.matrix);
    grouped_linear_backward_input(ctx, compute, dy.matrix, w, ends, dx.matrix);
    grouped_linear_backward_weight(ctx, compute, dy.matrix, x.matrix, ends, dw, c.accumulate);
  } else {
    blockdiag_linear_forward(ctx, compute, x.matrix, w, y.matrix);
    blockdiag_linear_backward_input(ctx, compute, dy.matrix, w, dx.matrix);
    blockdiag_linear_backward_weight(ctx, compute, dy.matrix, x.matrix, dw, c.accumulate);
  }
  return {{"y", y.whole}, {"dx", dx.whole}, {"dw", dw}};
}

// Operands are the same numbers in bf16: fp32 rounds the sums, bf16 the results besides.
Bar bar_of_result(DType type) {
  return type == DType::kBF16 ? Bar{4e-3, 4e-3} : kFloatBar;
}

void expect_groups(const GroupCase& c) {
  for (const DType compute : {DType::kF32, DType::kBF16})
    expect_product_op(fmt::format("{}/{}", c.name, name_of(compute)), compute,
                      {bar_of_result(c.y), bar_of_result(c.x), kFloatBar},
                      [&](Place& p) { return run_groups(p, c); });
}

TEST(GpuGroups, OfRowsMatchTheReferenceInEveryMode) {
  for (GroupCase& c :
       std::vector<GroupCase>{groups_of_rows("grouped/one", 1, 1, {1}, 0),
                              groups_of_rows("grouped/odd-sizes", 5, 7, {3, 0, 1, 5}, 2),
                              groups_of_rows("grouped/no-rows", 24, 16, {0, 0, 0}, 5),
                              groups_of_rows("grouped/edges", 64, 40, {0, 64, 0, 1, 65, 0}, 3),
                              groups_of_rows("grouped/one-of-many", 72, 136, {0, 0, 130, 0}, 0)}) {
    expect_groups(c);
    c.name += "/added", c.accumulate = true;
    expect_groups(c);
  }
}

// Parts of the rows, of which some are empty.
TEST(GpuGroups, SumRowsInParts) {
  for (const bool accumulate : {false, true}) {
    GroupCase c = groups_of_rows(accumulate ? "grouped/parts/added" : "grouped/parts", 24, 40,
                                 {700, 20, 0}, 80);
    c.accumulate = accumulate;
    expect_groups(c);
  }
}

device::ProductMatrix product_matrix(const Matrix& m, int64_t group_stride) {
  const auto type =
      m.dtype == DType::kBF16 ? device::ElementType::kBF16 : device::ElementType::kF32;
  return {{m.data, type}, m.stride, group_stride, m.cols % 8 == 0};
}

// All passes in squares of 128, which an op takes where it has many.
std::vector<Output> run_large_squares(Place& p, const GroupCase& c) {
  using device::LinearPass;
  const Operand w = stack_of_weights(p, c);
  const Tensor ends = p.ints(c.rows), dw = p.unset(DType::kF32, {c.G, c.N, c.K});
  const Activations x = group_columns(p, c, c.x, "x", c.K), y = group_columns(p, c, c.y, "y", c.N),
                    dy = group_columns(p, c, c.y, "dy", c.N),
                    dx = group_columns(p, c, c.x, "dx", c.K);
  const Tensor& read = w.forward ? w.forward : w.w;
  const auto of_w = product_matrix(Matrix::of(read.view(w.w.shape)), c.N * c.K);
  const auto run = [&](LinearPass pass, const device::ProductMatrix& a,
                       const device::ProductMatrix& b, const device::ProductMatrix& to,
                       int64_t rows, int64_t columns, int64_t depth) {
    EXPECT_EQ(
        device::launch(device::GroupedProduct{.pass = pass,
                                              .in_bf16 = p.product() == DType::kBF16,
                                              .a = a,
                                              .b = b,
                                              .c = to,
                                              .num_groups = int32_t(c.G),
                                              .rows = int32_t(rows),
                                              .columns = int32_t(columns),
                                              .depth = int32_t(depth),
                                              .row_of_group = reinterpret_cast<int32_t*>(ends.data),
                                              .accumulates = false,
                                              .side = 128,
                                              .parts = 1,
                                              .c_part_stride = 0}),
        "");
  };
  const auto rows = [](const Activations& m) { return product_matrix(m.matrix, 0); };
  run(LinearPass::kForward, rows(x), of_w, rows(y), c.T, c.N, c.K);
  run(LinearPass::kBackwardInput, rows(dy), of_w, rows(dx), c.T, c.K, c.N);
  run(LinearPass::kBackwardWeight, rows(dy), rows(x), product_matrix(Matrix::of(dw), c.N * c.K),
      c.N, c.K, c.T);
  return {{"y", y.whole}, {"dx", dx.whole}, {"dw", dw}};
}

TEST(GpuGroups, LargeSquaresMatchTheReferenceInEveryMode) {
  for (const auto& [N, K] : {std::pair{136, 136}, std::pair{130, 67}}) {
    const GroupCase c =
        groups_of_rows(fmt::format("grouped/large/{}x{}", N, K), N, K, {0, 150, 1}, 1);
    for (const DType compute : {DType::kF32, DType::kBF16})
      expect_product_op(fmt::format("{}/{}", c.name, name_of(compute)), compute,
                        {bar_of_result(c.y), bar_of_result(c.x), kFloatBar}, [&](Place& p) {
                          if (p.context().ops != &gpu::kOps) return run_groups(p, c);
                          // Launches take no workspace and are not recorded.
                          if (p.context().meta()) return std::vector<Output>();
                          return run_large_squares(p, c);
                        });
  }
}

// One of their eight experts.
TEST(GpuGroups, OfRowsOfTheModels) {
  expect_groups(groups_of_rows("grouped/zaya1-nano/gate_up", 1024, 256, {30}, 4));
  expect_groups(groups_of_rows("grouped/moe-nano/down", 512, 704, {17}, 0));
}

TEST(GpuGroups, OfColumnsMatchTheReferenceInEveryMode) {
  expect_groups({.name = "blockdiag/one", .G = 1, .T = 1, .N = 1, .K = 1});
  expect_groups({.name = "blockdiag/odd-sizes", .G = 3, .T = 17, .N = 5, .K = 7});
  expect_groups({.name = "blockdiag/dense", .G = 1, .T = 130, .N = 70, .K = 33});
  expect_groups({.name = "blockdiag/zaya1-nano", .G = 6, .T = 70, .N = 64, .K = 128});
  for (const bool accumulate : {false, true})
    expect_groups({.name = accumulate ? "blockdiag/parts/added" : "blockdiag/parts",
                   .G = 2,
                   .T = 600,
                   .N = 24,
                   .K = 40,
                   .accumulate = accumulate});
}

// These groups are so many that the op takes squares of 128.
TEST(GpuGroups, OfColumnsOfManyGroups) {
  const GroupCase c{.name = "blockdiag/many", .G = 132, .T = 20, .N = 8, .K = 24};
  expect_product_op(c.name, DType::kBF16, {bar_of_result(c.y), bar_of_result(c.x), kFloatBar},
                    [&](Place& p) { return run_groups(p, c); });
}

TEST(GpuGroups, TakeAnyTypesAndColumnsOfWiderMatrices) {
  for (const int64_t beside : {3, 8})
    for (const DType x : {DType::kF32, DType::kBF16})
      for (const DType y : {DType::kF32, DType::kBF16}) {
        const std::string name = fmt::format("/{}-to-{}/{}-beside", name_of(x), name_of(y), beside);
        GroupCase c = groups_of_rows("grouped" + name, 24, 16, {5, 0, 33}, 2);
        c.x = x, c.y = y, c.beside = beside;
        expect_groups(c);
        expect_groups({.name = "blockdiag" + name,
                       .G = 3,
                       .T = 19,
                       .N = 16,
                       .K = 24,
                       .x = x,
                       .y = y,
                       .beside = beside});
      }
}

TEST(GpuGroups, NoTokensLeaveGradientsOrClearThem) {
  for (const bool accumulate : {false, true}) {
    const char* end = accumulate ? "/added" : "";
    GroupCase c = groups_of_rows(fmt::format("grouped/no-tokens{}", end), 8, 16, {0, 0}, 0);
    c.accumulate = accumulate;
    expect_groups(c);
    expect_groups({.name = fmt::format("blockdiag/no-tokens{}", end),
                   .G = 2,
                   .T = 0,
                   .N = 8,
                   .K = 16,
                   .accumulate = accumulate});
  }
}

// Nothing behind a group's last row reaches its sums.
TEST(GpuGroups, ReadNothingOfOtherGroups) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Bench bench({DType::kF32, compute});
    Place p(gpu::kOps, bench);
    const GroupCase c = groups_of_rows("", 8, 16, {3, 2}, 4);
    const Operand w = stack_of_weights(p, c);
    const Tensor ends = p.ints(c.rows);
    // NaN from the first row of the second group on.
    const Tensor x = p.unset(compute, {c.T, c.K}), dy = p.unset(compute, {c.T, c.N});
    copy(p.context(), p.random(compute, "x", {3, c.K}), x.slice(0, 3));
    copy(p.context(), p.random(compute, "dy", {3, c.N}), dy.slice(0, 3));
    const Tensor y = p.zeros(DType::kF32, {c.T, c.N}), dw = p.zeros(DType::kF32, {c.G, c.N, c.K});
    grouped_linear_forward(p.context(), compute, Matrix::of(x), w, ends, Matrix::of(y));
    grouped_linear_backward_weight(p.context(), compute, Matrix::of(dy), Matrix::of(x), ends, dw);
    const std::vector<double> of_y = values_of(y), of_dw = values_of(dw);
    for (int64_t i = 0; i < y.numel(); ++i)
      EXPECT_EQ(std::isnan(of_y[size_t(i)]), i / c.N == 3 || i / c.N == 4) << i;
    for (int64_t i = 0; i < dw.numel(); ++i)
      EXPECT_EQ(std::isnan(of_dw[size_t(i)]), i >= c.N * c.K) << i;
  }
}

}  // namespace
}  // namespace ashlar::kernels
