// One product with tensors of its own, for measurements of single shapes.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ashlar/bench/product_case.h"
#include "ashlar/train/kernel_call.h"

namespace ashlar::bench {

// y [T, N] = x [T, K] W^T of G weights, or one of its gradients.  Each weight has T / G of the
// rows, or own columns of all rows.
struct ProductSpec {
  Direction direction = Direction::kForward;
  DType compute = DType::kF32;
  DType x = DType::kF32, y = DType::kF32;  // of x and dx; of y and dy
  int64_t G = 1, T = 0, N = 0, K = 0;
  bool own_columns = false;

  int64_t column_groups() const { return own_columns ? G : 1; }
  double flop() const { return 2.0 * double(T * column_groups()) * double(N) * double(K); }
  int64_t bytes() const;         // every operand once, as a trace counts them
  int64_t memory_bytes() const;  // of the tensors of a OneProduct, about
  std::string op() const;        // "grouped_linear_backward_weight"
  DType result() const;          // of what it writes
  auto operator<=>(const ProductSpec&) const = default;
};

// The product that a call was, nullopt if it was none.  The types of its operands follow from its
// bytes; where several fit, they are those that training uses.
std::optional<ProductSpec> product_of(const train::KernelCall& call);

class OneProduct {
 public:
  OneProduct(Threads& threads, const ProductSpec& spec);
  void run() { run(case_.context()); }
  void run(const kernels::Context& context);
  kernels::Context context() const { return case_.context(); }
  std::span<const std::byte> result() const;  // all bytes of what run() writes

 private:
  ProductCase case_;
  const ProductSpec spec_;
  kernels::Operand w_;
  Tensor x_, y_, groups_;
};

}  // namespace ashlar::bench
