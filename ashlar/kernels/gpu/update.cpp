#include <algorithm>

#include "ashlar/core/rounding.h"
#include "ashlar/kernels/cpu/optim/update_reference.h"
#include "ashlar/kernels/gpu/arguments.h"
#include "ashlar/kernels/gpu/ops.h"

namespace ashlar::kernels::gpu {
namespace {

// Any list of elements: the last of them need not fill a vector.
bool begin_at_vectors(std::initializer_list<Tensor> tensors) {
  return by_vectors(0, tensors);
}

// The rows that an update refreshes, of the weights in bf16; absent where there are none.
Tensor operand_rows(const PackedRows& packed, int64_t numel) {
  if (!packed.operand || !packed.operand->forward) return {};
  const Tensor& all = packed.operand->forward;
  const int64_t first = packed.row * packed.operand->k();
  ASHLAR_ASSERT(all.dtype == DType::kBF16 && all.numel() == packed.operand->w.numel());
  return all.view({all.numel()}).slice(first, first + numel);
}

int64_t first_non_finite_widened(const Context& ctx, const Tensor& x) {
  constexpr int64_t kChunk = 1 << 14;
  const Tensor all = x.view({x.numel()});
  for (int64_t begin = 0; begin < x.numel(); begin += kChunk) {
    const Arena::Scope scope(*ctx.workspace);
    const Tensor part = all.slice(begin, std::min(begin + kChunk, x.numel()));
    const Tensor wide = ctx.workspace->take(DType::kF32, part.shape);
    gpu::copy(ctx, Matrix::of(part), Matrix::of(wide));
    const int64_t found = gpu::first_non_finite(ctx, wide);
    if (found >= 0) return begin + found;
  }
  return -1;
}

}  // namespace

void adamw(const Context& ctx, const AdamW& x) {
  if (x.w.empty()) return;
  const auto f = cpu::adamw_factors<float>(x.step);
  const Tensor operand = operand_rows(x.packed, x.w.numel());
  launch(ctx, device::AdamWUpdate{.beta1 = f.beta1,
                                  .one_minus_beta1 = f.one_minus_beta1,
                                  .beta2 = f.beta2,
                                  .one_minus_beta2 = f.one_minus_beta2,
                                  .keep = f.keep,
                                  .rate = f.rate,
                                  .inverse_root2 = f.inverse_root2,
                                  .eps = f.eps,
                                  .grad_scale = f.grad_scale,
                                  .g = floats(x.g),
                                  .w = floats(x.w),
                                  .m = floats(x.m),
                                  .v = floats(x.v),
                                  .operand = elements(operand),
                                  .n = x.w.numel(),
                                  .by_vectors = begin_at_vectors({x.g, x.w, x.m, x.v, operand})});
}

void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& sum_1) {
  const int64_t n = x.numel();
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials =
      ctx.workspace->take(DType::kF64, {ceil_div(n, device::kSquaresOfPartial)});
  launch(ctx, device::SumOfSquares{.x = floats(x),
                                   .partials = reinterpret_cast<double*>(partials.data),
                                   .sum = reinterpret_cast<double*>(sum_1.data),
                                   .n = n,
                                   .by_vectors = begin_at_vectors({x})});
}

void muon_momentum(const Context& ctx, const MuonMomentum& x) {
  if (x.g.empty()) return;
  launch(ctx, device::MuonMomentumUpdate{.mu = float(x.mu),
                                         .grad_scale = float(x.grad_scale),
                                         .nesterov = x.nesterov,
                                         .g = floats(x.g),
                                         .m = floats(x.m),
                                         .x = floats(x.x),
                                         .n = x.g.numel(),
                                         .by_vectors = begin_at_vectors({x.g, x.m, x.x})});
}

void muon_apply(const Context& ctx, const MuonApply& x) {
  if (x.w.empty()) return;
  const Tensor operand = operand_rows(x.packed, x.w.numel());
  launch(ctx, device::MuonApplyUpdate{.keep = float(1 - x.lr * x.decay),
                                      .factor = float(-x.lambda),
                                      .x = floats(x.x),
                                      .w = floats(x.w),
                                      .operand = elements(operand),
                                      .n = x.w.numel(),
                                      .by_vectors = begin_at_vectors({x.x, x.w, operand})});
}

// Any rows: the weights in bf16 lie as the weights do.
bool packs_in_update(const Context&, const PackedRows& packed, int64_t) {
  return bool(packed.operand->forward);
}

int64_t first_non_finite(const Context& ctx, const Tensor& x) {
  const int64_t n = x.numel();
  if (x.dtype == DType::kBF16) return first_non_finite_widened(ctx, x);
  const Arena::Scope scope(*ctx.workspace);
  const Tensor partials =
      ctx.workspace->take(DType::kI64, {ceil_div(n, device::kSquaresOfPartial) + 1});
  if (ctx.meta() || n == 0) return -1;
  auto* found = reinterpret_cast<int64_t*>(partials.data);
  launch(ctx, device::FirstNonFinite{.x = floats(x),
                                     .partials = found + 1,
                                     .first = found,
                                     .n = n,
                                     .by_vectors = begin_at_vectors({x})});
  int64_t first = n;
  gpu::download_i64(ctx, partials.slice(0, 1), std::span(&first, 1));
  return first == n ? -1 : first;
}

}  // namespace ashlar::kernels::gpu
