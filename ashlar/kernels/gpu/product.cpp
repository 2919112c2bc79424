// linear.h: products whose groups own rows or columns.
#include <algorithm>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

using device::LinearPass;

// Blocks that keep a card busy, two for each of an H100's 132 multiprocessors.  Shapes decide, and
// not the card: bits are the same on all cards of a kind.
constexpr int64_t kManyBlocks = 264;
constexpr int64_t kRowsOfPart = 256;  // fewer are not worth the traffic of a partial sum

// x [T, K], y [T, N] and w [G, N, K] in the roles of a pass, as in linear.h.
struct GroupedPass {
  LinearPass pass;
  DType compute;
  Matrix x, y;
  Tensor w;             // of backward_weight dw
  Tensor row_of_group;  // absent: groups own columns
  bool accumulates = false;

  int64_t G() const { return w.shape[0]; }
  int64_t N() const { return w.shape[1]; }
  int64_t K() const { return w.shape[2]; }
  int64_t T() const { return x.rows; }
  bool sums_rows() const { return pass == LinearPass::kBackwardWeight; }
  // Rows and columns of the result of a group; all rows, where groups own them.
  int64_t rows() const { return sums_rows() ? N() : T(); }
  int64_t columns() const { return pass == LinearPass::kForward ? N() : K(); }
  int64_t depth() const { return sums_rows() ? T() : pass == LinearPass::kForward ? K() : N(); }

  // Squares of the result, if every group has its share of the rows.
  int64_t squares(int64_t side) const {
    const bool shares = row_of_group && !sums_rows();
    return ceil_div(shares ? ceil_div(T(), G()) : rows(), side) * ceil_div(columns(), side) * G();
  }
  int64_t side() const {
    const auto [small, large] = device::kProductSides;
    return 2 * squares(large) >= kManyBlocks ? large : small;
  }
  int64_t parts() const {
    if (!sums_rows()) return 1;
    const int64_t rows_of_group = row_of_group ? ceil_div(T(), G()) : T();
    const int64_t most = std::max(ceil_div(rows_of_group, kRowsOfPart), int64_t{1});
    return std::min(ceil_div(kManyBlocks, squares(side())), most);
  }
};

// An activation matrix, in which a group owns rows, or `width` columns.
device::ProductMatrix grouped_activations(const Matrix& m, const GroupedPass& p, int64_t width) {
  return {.elements = {m.data, element_type(m.dtype)},
          .stride = m.stride,
          .group_stride = p.row_of_group ? 0 : width,
          .by_vectors = width % 8 == 0 && m.stride % 8 == 0 && begins_at_vector(m.data)};
}
device::ProductMatrix grouped_weights(const Tensor& w) {
  const int64_t N = w.shape[1], K = w.shape[2];
  return {.elements = elements(w),
          .stride = K,
          .group_stride = N * K,
          .by_vectors = by_vectors(K, {w})};
}

device::GroupedProduct grouped_product_of(const GroupedPass& p) {
  const auto x = grouped_activations(p.x, p, p.K()), y = grouped_activations(p.y, p, p.N()),
             w = grouped_weights(p.w);
  const bool forward = p.pass == LinearPass::kForward;
  return {.pass = p.pass,
          .in_bf16 = p.compute == DType::kBF16,
          .a = forward ? x : y,
          .b = p.sums_rows() ? x : w,
          .c = p.sums_rows() ? w
               : forward     ? y
                             : x,
          .num_groups = int32_t(p.G()),
          .rows = int32_t(p.rows()),
          .columns = int32_t(p.columns()),
          .depth = int32_t(p.depth()),
          .row_of_group = ints(p.row_of_group),
          .accumulates = p.accumulates,
          .side = int32_t(p.side()),
          .parts = 1,
          .c_part_stride = 0};
}

void run_grouped(const Context& ctx, const GroupedPass& p) {
  ASHLAR_ASSERT(p.compute == DType::kF32 || p.compute == DType::kBF16);
  const Arena::Scope scope(*ctx.workspace);
  const int64_t parts = p.parts();
  const Tensor partials =
      parts > 1 ? ctx.workspace->take(DType::kF32, {parts, p.w.numel()}) : Tensor();
  if (p.rows() == 0) return;
  device::GroupedProduct product = grouped_product_of(p);
  if (partials) {
    product.c.elements = elements(partials);
    product.accumulates = false;
    product.parts = int32_t(parts);
    product.c_part_stride = p.w.numel();
  }
  launch(ctx, product);
  if (partials)
    launch(ctx, device::SumPartials{.partials = floats(partials),
                                    .to = floats(p.w),
                                    .rows = parts,
                                    .width = p.w.numel(),
                                    .overwrites = !p.accumulates});
}

}  // namespace

void grouped_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                            const Tensor& row_of_group_G1, const Matrix& y) {
  run_grouped(ctx, {LinearPass::kForward, compute, x, y, weights_of(w, compute), row_of_group_G1});
}

void grouped_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                   const Operand& w, const Tensor& row_of_group_G1,
                                   const Matrix& dx) {
  run_grouped(
      ctx, {LinearPass::kBackwardInput, compute, dx, dy, weights_of(w, compute), row_of_group_G1});
}

void grouped_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                    const Matrix& x, const Tensor& row_of_group_G1,
                                    const Tensor& dw, bool accumulate) {
  run_grouped(ctx, {LinearPass::kBackwardWeight, compute, x, dy, dw, row_of_group_G1, accumulate});
}

void blockdiag_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                              const Matrix& y) {
  run_grouped(ctx, {LinearPass::kForward, compute, x, y, weights_of(w, compute), {}});
}

void blockdiag_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                     const Operand& w, const Matrix& dx) {
  run_grouped(ctx, {LinearPass::kBackwardInput, compute, dx, dy, weights_of(w, compute), {}});
}

void blockdiag_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                      const Matrix& x, const Tensor& dw, bool accumulate) {
  run_grouped(ctx, {LinearPass::kBackwardWeight, compute, x, dy, dw, {}, accumulate});
}

}  // namespace ashlar::kernels::gpu
