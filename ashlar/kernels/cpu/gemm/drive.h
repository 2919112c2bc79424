// Products of whole matrices from the tiles of an Engine: copies of operands, the cut into tasks,
// the stores.
//
// Every output element is summed by one task: in one go over K, or, where the engine cuts sums
// (k_block), in parts that depend on K only and are added in order.  So the bits do not depend on
// the number of threads.  Copies of whole operands live in ctx.workspace; on meta they are taken,
// so that a dry run counts them, and nothing runs.  Copies of a task's part lie on its stack, at
// most 1 MiB.
#pragma once

#include <span>

#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/linear.h"
#include "ashlar/kernels/product_forms.h"

namespace ashlar::kernels::cpu::gemm {

// How a product falls into groups.  Rows of group g: [row_of_group[g], row_of_group[g+1]) where
// groups own rows; all rows, and the g-th block of columns, where they own columns.
struct Groups {
  int64_t count = 1;
  bool own_rows;                               // else columns
  std::span<const int32_t> row_of_group = {};  // where groups own rows: count + 1; empty on meta
};

// c_g [., N] (+)= a_g [., K] B_g.  panels: B of group 0; groups follow each other.
// form: changes the time alone; see below.
void multiply(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
              const Matrix& a, const std::byte* panels, const Matrix& c, bool accumulate,
              const ProductForm& form = {});

// dw_g [N, K] (+)= dy_g^T x_g, reduced over the rows that group g owns (all rows where groups own
// columns).
void reduce(const Context& ctx, const Engine& engine, const Groups& groups, int64_t N, int64_t K,
            const Matrix& dy, const Matrix& x, float* dw, bool accumulate,
            const ProductForm& form = {});

// The form's choice where a product can follow it, else that of the rule.  `most` is a limit
// of the stack, or of the order of sums; rows are whole tiles.
inline int64_t rows_of_task(const ProductForm& form, const Engine& engine, int64_t rule,
                            int64_t most) {
  if (form.rows <= 0) return rule;
  const int64_t tile = engine.max_rows;
  return std::clamp(form.rows / tile * tile, tile, most / tile * tile);
}
inline int64_t panels_of_task(const ProductForm& form, int64_t rule, int64_t most) {
  return form.panels <= 0 ? rule : std::clamp<int64_t>(form.panels, 1, most);
}
inline bool rows_go_first(const ProductForm& form, bool rule) {
  return form.order == TaskOrder::kByRule ? rule : form.order == TaskOrder::kRowsFirst;
}
// Whether rows of `a`, of which tiles can read some in place, are copied.
bool copies_rows(const ProductForm& form, const Engine& engine, const Matrix& a, int64_t K,
                 bool rule);

// Both forms of w [G, N, K]: panels of its transpose for x W^T, and panels of itself for dy W (may
// be absent).
void pack_operand(const Context& ctx, const Engine& engine, const Operand& w);

// The rows that are packed at a time for both forms: the rows of all groups are cut into blocks of
// that many.  0: the forms of such a weight are packed one after the other.
int64_t rows_packed_at_once(const Engine& engine, const Operand& w);
void pack_row_block(const Engine& engine, const Operand& w, int64_t block);

// Panels of B_g [K, N] from w, whose groups [K, N] (or [N, K] if transposed) follow each other.
void pack_weights(const Context& ctx, const Engine& engine, int64_t num_groups, int64_t K,
                  int64_t N, const Tensor& w, bool transposed, std::byte* panels);

}  // namespace ashlar::kernels::cpu::gemm
