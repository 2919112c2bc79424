#include "ashlar/kernels/linear.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/int8.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// Checks x [T, K], y [T, N] (dx and dy in backward) and w [G, N, K] and records the cost.  Where
// groups own columns, x and y have those of all; weight: the type in which W is read or written.
Trace::Scope count(const Context& ctx, std::string_view op, DType compute, const Matrix& x,
                   const Matrix& y, const Operand& w, DType weight, bool own_columns = false,
                   TraceEvent::Varies varies = TraceEvent::Varies::kNo) {
  const int64_t G = w.groups(), N = w.n(), K = w.k(), T = x.rows;
  const int64_t column_groups = own_columns ? G : 1;
  ASHLAR_ASSERT(y.rows == T && x.cols == column_groups * K && y.cols == column_groups * N);
  ASHLAR_ASSERT(is_real(x.dtype) && is_real(y.dtype));
  return ctx.record(
      op, compute,
      {2 * T * N * K * column_groups, bytes_of(x) + bytes_of(y) + G * N * K * size_of(weight)},
      {int32_t(G), int32_t(T), int32_t(N), int32_t(K)}, varies, T);
}

// The type in which a product reads W.
DType weight_type(DType compute, const Operand& w) {
  return w.forward.dtype == DType::kI8 ? DType::kI8 : compute;
}

// W is one matrix.
Trace::Scope count_dense(const Context& ctx, std::string_view op, DType compute, const Matrix& x,
                         const Matrix& y, const Operand& w, DType weight) {
  ASHLAR_ASSERT(w.groups() == 1);
  return count(ctx, op, compute, x, y, w, weight);
}

Trace::Scope count_rows(const Context& ctx, std::string_view op, DType compute, const Matrix& x,
                        const Matrix& y, const Operand& w, DType weight,
                        const Tensor& row_of_group_G1) {
  check_tensor(row_of_group_G1, {w.groups() + 1}, DType::kI32);
  return count(ctx, op, compute, x, y, w, weight, false, TraceEvent::Varies::kExpertRows);
}

}  // namespace

OperandLayout operand_layout(const Context& ctx, int64_t groups, int64_t n, int64_t k,
                             DType compute, bool for_backward) {
  return ctx.ops->operand_layout(ctx, groups, n, k, compute, for_backward);
}

void pack(const Context& ctx, const Operand& w) {
  if (!w.forward) return;
  const auto call =
      ctx.record("pack", w.w.dtype, {0, w.w.bytes() + w.forward.bytes() + w.backward.bytes()},
                 {int32_t(w.groups()), 0, int32_t(w.n()), int32_t(w.k())});
  ctx.ops->pack(ctx, w);
}

void round_to_int8(const Context& ctx, DType compute, Operand& w) {
  ASHLAR_ASSERT(compute == DType::kBF16 || compute == DType::kF32);
  ASHLAR_ASSERT(!w.backward && w.forward.dtype != DType::kI8);
  const auto call = ctx.record("round_to_int8", w.w.dtype, {0, w.w.bytes() + w.forward.bytes() / 2},
                               {int32_t(w.groups()), 0, int32_t(w.n()), int32_t(w.k())});
  ctx.ops->round_to_int8(ctx, compute, w);
}

void linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                    const Matrix& y, bool accumulate) {
  const auto call = count_dense(ctx, "linear_forward", compute, x, y, w, weight_type(compute, w));
  ctx.ops->linear_forward(ctx, compute, x, w, y, accumulate);
}

void linear_backward_input(const Context& ctx, DType compute, const Matrix& dy, const Operand& w,
                           const Matrix& dx, bool accumulate) {
  const auto call = count_dense(ctx, "linear_backward_input", compute, dx, dy, w, compute);
  ctx.ops->linear_backward_input(ctx, compute, dy, w, dx, accumulate);
}

void linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy, const Matrix& x,
                            const Tensor& dw, bool accumulate) {
  const auto call =
      count_dense(ctx, "linear_backward_weight", compute, x, dy, {dw, {}, {}}, dw.dtype);
  ctx.ops->linear_backward_weight(ctx, compute, dy, x, dw, accumulate);
}

void grouped_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                            const Tensor& row_of_group_G1, const Matrix& y) {
  const auto call = count_rows(ctx, "grouped_linear_forward", compute, x, y, w,
                               weight_type(compute, w), row_of_group_G1);
  ctx.ops->grouped_linear_forward(ctx, compute, x, w, row_of_group_G1, y);
}

void grouped_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                   const Operand& w, const Tensor& row_of_group_G1,
                                   const Matrix& dx) {
  const auto call = count_rows(ctx, "grouped_linear_backward_input", compute, dx, dy, w, compute,
                               row_of_group_G1);
  ctx.ops->grouped_linear_backward_input(ctx, compute, dy, w, row_of_group_G1, dx);
}

void grouped_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                    const Matrix& x, const Tensor& row_of_group_G1,
                                    const Tensor& dw, bool accumulate) {
  const auto call = count_rows(ctx, "grouped_linear_backward_weight", compute, x, dy, {dw, {}, {}},
                               dw.dtype, row_of_group_G1);
  ctx.ops->grouped_linear_backward_weight(ctx, compute, dy, x, row_of_group_G1, dw, accumulate);
}

void blockdiag_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                              const Matrix& y) {
  const auto call =
      count(ctx, "blockdiag_linear_forward", compute, x, y, w, weight_type(compute, w), true);
  ctx.ops->blockdiag_linear_forward(ctx, compute, x, w, y);
}

void blockdiag_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                     const Operand& w, const Matrix& dx) {
  const auto call =
      count(ctx, "blockdiag_linear_backward_input", compute, dx, dy, w, compute, true);
  ctx.ops->blockdiag_linear_backward_input(ctx, compute, dy, w, dx);
}

void blockdiag_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                      const Matrix& x, const Tensor& dw, bool accumulate) {
  const auto call =
      count(ctx, "blockdiag_linear_backward_weight", compute, x, dy, {dw, {}, {}}, dw.dtype, true);
  ctx.ops->blockdiag_linear_backward_weight(ctx, compute, dy, x, dw, accumulate);
}

}  // namespace ashlar::kernels
