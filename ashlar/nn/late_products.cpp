#include "ashlar/nn/late_products.h"

#include "ashlar/core/error.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/branch.h"

namespace ashlar::nn {
namespace {

using kernels::Context;
using kernels::Matrix;

void at_once_or_late(const Context& ctx, const Pass& pass, const WeightProduct& product) {
  pass.late ? pass.late->add(product) : product.run(ctx);
}

}  // namespace

void WeightProduct::run(const Context& ctx) const {
  switch (kind) {
    case Kind::kOne:
      return linear_backward_weight(ctx, compute, dy, x, dw, accumulate);
    case Kind::kGrouped:
      return grouped_linear_backward_weight(ctx, compute, dy, x, row_of_group, dw, accumulate);
    case Kind::kBlockDiagonal:
      return blockdiag_linear_backward_weight(ctx, compute, dy, x, dw, accumulate);
  }
}

LateProducts::LateProducts(Arena& arena, size_t most) : arena_(arena) {
  products_.reserve(most);
  taken_.emplace(arena_);
}

void LateProducts::add(const WeightProduct& product) {
  ASHLAR_ASSERT(products_.size() < products_.capacity());
  products_.push_back(product);
}

void LateProducts::run(const Context& ctx) {
  while (size() > 0) run(ctx, products_[next_].block);
}

void LateProducts::run(const Context& ctx, int64_t block) {
  while (size() > 0 && products_[next_].block == block) products_[next_++].run(ctx);
  if (size() > 0) return;
  products_.clear();
  next_ = 0;
  taken_.emplace(arena_);
}

void weight_gradient(const Context& ctx, const Pass& pass, const Matrix& dy, const Matrix& x,
                     const Tensor& dw) {
  at_once_or_late(ctx, pass,
                  {WeightProduct::Kind::kOne,
                   pass.types.compute,
                   dy,
                   x,
                   {},
                   dw,
                   pass.add_to_gradients,
                   pass.block});
}

void grouped_weight_gradient(const Context& ctx, const Pass& pass, const Matrix& dy,
                             const Matrix& x, const Tensor& row_of_group, const Tensor& dw) {
  at_once_or_late(ctx, pass,
                  {WeightProduct::Kind::kGrouped, pass.types.compute, dy, x, row_of_group, dw,
                   pass.add_to_gradients, pass.block});
}

void blockdiag_weight_gradient(const Context& ctx, const Pass& pass, const Matrix& dy,
                               const Matrix& x, const Tensor& dw) {
  at_once_or_late(ctx, pass,
                  {WeightProduct::Kind::kBlockDiagonal,
                   pass.types.compute,
                   dy,
                   x,
                   {},
                   dw,
                   pass.add_to_gradients,
                   pass.block});
}

Tensor gradient_room(const Context& ctx, const Pass& pass, DType dtype, const Shape& shape) {
  return pass.late ? pass.late->take(dtype, shape) : ctx.workspace->take(dtype, shape);
}

Tensor room_after(const Pass& pass, const Tensor& used) {
  return pass.late ? pass.late->take(used.dtype, used.shape) : used;
}

Matrix without_columns(const Context& ctx, const Pass& pass, const Tensor& used, int64_t begin,
                       int64_t end) {
  const Tensor rest = pass.late ? ctx.workspace->take(used.dtype, used.shape) : used;
  if (pass.late) copy(ctx, used, rest);
  const Matrix matrix = Matrix::of(rest);
  fill(ctx, matrix.columns(begin, end), 0.0);
  return matrix;
}

}  // namespace ashlar::nn
