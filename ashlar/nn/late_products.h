// Products that make gradients of weights, kept back to run later: nothing else of backward reads
// what they make.  A pipeline runs them where it would wait, a ring after the sum that they add to
// has come.
//
// Shapes   dy [T, N], x [T, K], dw [N, K]; by group dw [G, N, K], rows of group g from
//          row_of_group[g] on.
// Memory   what take() gives comes from an arena of the owner, and lives until run(); operands that
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
  int64_t block;  // of the whole model
  void run(const kernels::Context&) const;
};

class LateProducts {
 public:
  // arena: holds the gradients that products kept back still read, and nothing else meanwhile.
  // most: products at a time.
  LateProducts(Arena& arena, size_t most);
  Tensor take(DType dtype, const Shape& shape) { return arena_.take(dtype, shape); }
  void add(const WeightProduct& product);
  void run(const kernels::Context&);  // in the order of add; then none are left
  // Those of the block, which come next in that order; nothing where it has none.
  void run(const kernels::Context&, int64_t block);
  size_t size() const { return products_.size() - next_; }

 private:
  Arena& arena_;
  std::optional<Arena::Scope> taken_;
  std::vector<WeightProduct> products_;
  size_t next_ = 0;  // the first that has not run
};

// At once, or kept back by pass.late.
void weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                     const kernels::Matrix& x, const Tensor& dw);
void grouped_weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                             const kernels::Matrix& x, const Tensor& row_of_group,
                             const Tensor& dw);
void blockdiag_weight_gradient(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                               const kernels::Matrix& x, const Tensor& dw);
// Room for an operand of such a product that backward makes: in the workspace, or as long as the
// product is kept back.
Tensor gradient_room(const kernels::Context&, const Pass&, DType dtype, const Shape& shape);
// Room for the next of such operands once `used` was one: the same, unless that is kept back.
Tensor room_after(const Pass&, const Tensor& used);
// Such an operand with 0 in its columns [begin, end), for whoever reads it next: in place, or in
// the workspace where a product that is kept back still reads it.
kernels::Matrix without_columns(const kernels::Context&, const Pass&, const Tensor& used,
                                int64_t begin, int64_t end);

}  // namespace ashlar::nn
