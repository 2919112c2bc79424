// Products that make gradients of weights, deferred to run later; nothing else in backward reads
// their results.  A pipeline runs them where it would otherwise wait, a ring after the sum that
// they add to has arrived.
//
// Shapes   dy [T, N], x [T, K], dw [N, K]; by group dw [G, N, K], rows of group g from
//          row_of_group[g] on.
// Memory   take() takes from an arena of the owner, and its memory lives until run(); operands that
//          forward kept (Saved) must live as long.
#pragma once

#include <optional>
#include <vector>

#include "ashlar/kernels/linear.h"

namespace ashlar::nn {

struct Pass;  // branch.h

struct WeightProduct {
  enum class Kind : uint8_t { kOne, kGrouped, kBlockDiagonal } kind;
  DType compute;
  kernels::Matrix dy, x;
  Tensor row_of_group;  // of kGrouped
  Tensor dw;
  bool accumulate;
  int64_t block;  // number in the whole model
  void run(const kernels::Context&) const;
};

class LateProducts {
 public:
  // arena: holds the gradients that deferred products still read, and nothing else meanwhile.
  // most: the largest number of products at a time.
  LateProducts(Arena& arena, size_t most);
  Tensor take(DType dtype, const Shape& shape) { return arena_.take(dtype, shape); }
  void add(const WeightProduct& product);
  void run(const kernels::Context&);  // runs all, in the order of add
  // Runs the products of the block, which come next in that order; it may have none.
  void run(const kernels::Context&, int64_t block);
  size_t size() const { return products_.size() - next_; }

 private:
  Arena& arena_;
  std::optional<Arena::Scope> taken_;
  std::vector<WeightProduct> products_;
  size_t next_ = 0;  // first product that has not run
};

// Run the product at once, or defer it in pass.late.
void weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                     const kernels::Matrix& x, const Tensor& dw);
void grouped_weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                             const kernels::Matrix& x, const Tensor& row_of_group,
                             const Tensor& dw);
void blockdiag_weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                               const kernels::Matrix& x, const Tensor& dw);
// Memory for an operand of such a product that backward makes: from the workspace, or from
// pass.late until the product has run.
Tensor gradient_room(const kernels::Context&, const Pass&, DType dtype, const Shape& shape);
// Memory for the next such operand after `used`: the same memory, unless a deferred product still
// reads it.
Tensor room_after(const Pass&, const Tensor& used);
// The operand `used` with 0 in its columns [begin, end), for the next reader: in place, or a copy
// in the workspace if a deferred product still reads it.
kernels::Matrix without_columns(const kernels::Context&, const Pass&, const Tensor& used,
                                int64_t begin, int64_t end);

}  // namespace ashlar::nn
