// The forms of products: choices between ways to compute the same bits, which only take different
// times.  By default the kernels choose by rules; a ProductTable, measured on the machine, replaces
// the rules where it has an entry.
//
// A form says how a product is cut into tasks, in which order they follow each other, and whether
// rows are copied before tiles read them.  No choice changes the order of the sums over K, so that
// results are equal bit for bit (tests/kernels/product_forms_test.cpp).  Members that a product
// cannot follow, for its engine or the types of its operands, are left to the rules.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/tensor/dtype.h"

namespace ashlar::kernels {

// To be raised when a member changes its meaning, or the loops behind them change so that earlier
// times say nothing: tables of another version are refused.
inline constexpr int kProductFormsVersion = 2;

enum class TaskOrder : uint8_t {
  kByRule,
  kRowsFirst,    // tasks that follow each other have the same panels, and other rows
  kPanelsFirst,  // the same rows, and other panels
};
enum class RowCopies : uint8_t { kByRule, kAlways, kNever };

struct ProductForm {
  int32_t rows = 0;    // of a task, in the result; 0: by rule
  int32_t panels = 0;  // columns of a task, in panels of the engine; 0: by rule
  TaskOrder order = TaskOrder::kByRule;
  RowCopies copies = RowCopies::kByRule;  // of the left operand; no gradient of weights has it
  auto operator<=>(const ProductForm&) const = default;
  std::string text() const;  // "rows 256 panels 8 rows-first copied"; "rules"
};

enum class ProductPass : uint8_t { kForward, kBackwardInput, kBackwardWeight };

// The product y [rows, cols] = x [rows, depth] W^T of `groups` weights, or one of its gradients,
// as kernels/linear.h has them.
struct ProductKey {
  ProductPass pass = ProductPass::kForward;
  bool own_columns = false;  // block-diagonal: a group owns columns, else rows
  DType compute = DType::kF32, result = DType::kF32;
  int32_t groups = 1;
  int64_t cols = 0, depth = 0;
  int32_t threads = 1;
  int64_t rows = 0;
  auto operator<=>(const ProductKey&) const = default;
  // "linear_forward", "grouped_linear_forward", "blockdiag_linear_forward"
  std::string op() const;
};
// Sets pass and own_columns; false for a text that names no product.
bool set_op(std::string_view op, ProductKey& key);

struct ProductEntry {
  ProductKey key;
  ProductForm form;
};

class ProductTable {
 public:
  // At most one entry of each key.
  explicit ProductTable(std::vector<ProductEntry> entries);

  // The entry of the key; else that with the nearest number of rows, half to twice as many, and
  // all else equal; else null.  Any thread may call it.
  const ProductForm* find(const ProductKey& key) const;

  struct Counts {
    int64_t exact = 0, near = 0, missed = 0;
  };
  Counts counts() const { return {exact_, near_, missed_}; }  // of find
  std::span<const ProductEntry> entries() const { return entries_; }

 private:
  std::vector<ProductEntry> entries_;  // ascending by key
  mutable std::atomic<int64_t> exact_{0}, near_{0}, missed_{0};
};

// Forms of which one may be faster than the rules for this product on isa(): sizes of tasks.
std::vector<ProductForm> task_candidates(const ProductKey& key);
// The same task sizes in other orders, and with other copies.
std::vector<ProductForm> order_candidates(const ProductKey& key, const ProductForm& form);

}  // namespace ashlar::kernels
