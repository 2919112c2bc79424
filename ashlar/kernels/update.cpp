#include "ashlar/kernels/update.h"

#include "ashlar/kernels/checks.h"
#include "ashlar/kernels/ops.h"

namespace ashlar::kernels {
namespace {

// All have one type and size; each of `streams` tensors is read or written once.
Trace::Scope count(const Context& ctx, std::string_view op, int64_t flop, int64_t streams,
                   const Tensor& x, std::initializer_list<Tensor> others = {},
                   const PackedRows& packed = {}) {
  ASHLAR_ASSERT(is_stream(x.dtype));
  for (const Tensor& other : others)
    ASHLAR_ASSERT(other.dtype == x.dtype && other.numel() == x.numel());
  int64_t bytes = streams * x.bytes();
  if (const Operand* operand = packed.operand) {
    ASHLAR_ASSERT(packs_in_update(ctx, packed, x.numel()));
    const int64_t both = operand->forward.bytes() + operand->backward.bytes();
    bytes += x.numel() * both / operand->w.numel();
  }
  return ctx.record(op, x.dtype, {flop * x.numel(), bytes});
}

}  // namespace

bool packs_in_update(const Context& ctx, const PackedRows& packed, int64_t numel) {
  return ctx.ops->packs_in_update(ctx, packed, numel);
}

void adamw(const Context& ctx, const AdamW& x) {
  ASHLAR_ASSERT(x.step.step >= 1);
  const auto call = count(ctx, "adamw", 15, 7, x.w, {x.g, x.m, x.v}, x.packed);
  ctx.ops->adamw(ctx, x);
}

void muon_momentum(const Context& ctx, const MuonMomentum& x) {
  const auto call = count(ctx, "muon_momentum", 5, 4, x.g, {x.m, x.x});
  ctx.ops->muon_momentum(ctx, x);
}

void muon_apply(const Context& ctx, const MuonApply& x) {
  const auto call = count(ctx, "muon_apply", 3, 3, x.w, {x.x}, x.packed);
  ctx.ops->muon_apply(ctx, x);
}

void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& sum_1) {
  check_tensor(sum_1, {1}, DType::kF64);
  const auto call = count(ctx, "sum_of_squares", 2, 1, x);
  ctx.ops->sum_of_squares(ctx, x, sum_1);
}

int64_t first_non_finite(const Context& ctx, const Tensor& x) {
  ASHLAR_ASSERT(is_real(x.dtype));
  const auto call = ctx.record("first_non_finite", x.dtype, {0, x.bytes()});
  return ctx.ops->first_non_finite(ctx, x);
}

}  // namespace ashlar::kernels
