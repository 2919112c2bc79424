#include "ashlar/kernels/cpu/gemm/drive.h"
#include "ashlar/kernels/cpu/gemm/engine.h"
#include "ashlar/kernels/cpu/gemm/int8.h"
#include "ashlar/kernels/cpu/gemm/reference.h"
#include "ashlar/kernels/cpu/ops.h"
#include "ashlar/kernels/product_forms.h"

namespace ashlar::kernels::cpu {
namespace {

using gemm::Engine;
using gemm::Groups;
using gemm::Strided;

using Pass = ProductPass;

int64_t packed_numel(const Engine& engine, int64_t groups, int64_t K, int64_t N) {
  return groups * engine.num_panels(N) * engine.panel_bytes(K) / size_of(engine.panel_element);
}

Strided strided(const Matrix& matrix) {
  return {matrix.data, matrix.dtype, matrix.stride, 1};
}

// The parts of x, y and w that belong to group g.
struct Part {
  Matrix x, y;
  Strided w;
};
Part part_of(const Groups& groups, int64_t g, const Matrix& x, const Matrix& y, const Tensor& w,
             int64_t N, int64_t K) {
  const Strided w_NK{w.data + g * N * K * size_of(w.dtype), w.dtype, K, 1};
  if (!groups.own_rows) return {x.columns(g * K, (g + 1) * K), y.columns(g * N, (g + 1) * N), w_NK};
  const int64_t begin = groups.row_of_group[size_t(g)], end = groups.row_of_group[size_t(g) + 1];
  return {x.row_range(begin, end), y.row_range(begin, end), w_NK};
}

void reference_pass(const Context& ctx, Pass pass, DType compute, const Groups& groups, int64_t N,
                    int64_t K, const Matrix& x, const Matrix& y, const Tensor& w, bool accumulate) {
  if (ctx.meta()) return;
  for (int64_t g = 0; g < groups.count; ++g) {
    const Part p = part_of(groups, g, x, y, w, N, K);
    const int64_t T = p.x.rows;
    if (pass == Pass::kForward)
      gemm::reference_product(*ctx.threads, compute, T, N, K, strided(p.x), p.w.transposed(),
                              strided(p.y), accumulate);
    else if (pass == Pass::kBackwardInput)
      gemm::reference_product(*ctx.threads, compute, T, K, N, strided(p.y), p.w, strided(p.x),
                              accumulate);
    else
      gemm::reference_product(*ctx.threads, compute, N, K, T, strided(p.y).transposed(),
                              strided(p.x), p.w, accumulate);
  }
}

// The form that the table has for a product, if there is a table.
ProductForm form_of(const Context& ctx, Pass pass, DType compute, DType result,
                    const Groups& groups, int64_t T, int64_t N, int64_t K) {
  if (!ctx.products || ctx.meta()) return {};
  const ProductForm* form = ctx.products->find({.pass = pass,
                                                .own_columns = !groups.own_rows,
                                                .compute = compute,
                                                .result = result,
                                                .groups = int32_t(groups.count),
                                                .cols = N,
                                                .depth = K,
                                                .threads = ctx.threads->size(),
                                                .rows = T});
  return form ? *form : ProductForm{};
}

// x [T, K], y [T, N] and w [G, N, K] in the roles of `pass`.
void run(const Context& ctx, Pass pass, DType compute, const Groups& groups, const Matrix& x,
         const Matrix& y, const Operand& w, bool accumulate) {
  const int64_t N = w.n(), K = w.k(), T = x.rows;
  if (T == 0) {
    if (pass == Pass::kBackwardWeight && !accumulate && !ctx.meta()) fill_zero(w.w);
    return;
  }
  const Engine* engine = gemm::engine_for(ctx, compute);
  if (!engine) return reference_pass(ctx, pass, compute, groups, N, K, x, y, w.w, accumulate);

  if (pass == Pass::kBackwardWeight) {
    float* dw = ctx.meta() ? nullptr : w.w.as<float>();
    return gemm::reduce(ctx, *engine, groups, N, K, y, x, dw, accumulate,
                        form_of(ctx, pass, compute, DType::kF32, groups, T, N, K));
  }
  const bool forward = pass == Pass::kForward;
  const Tensor& packed = forward ? w.forward : w.backward;
  const int64_t columns = forward ? N : K, depth = forward ? K : N;
  if (packed.dtype == DType::kI8)
    return gemm::multiply_int8(ctx, *engine, groups, N, K, x, packed.data, y, accumulate);
  engine = &gemm::engine_of_panels(*engine, packed.dtype);
  ASHLAR_ASSERT(packed.dtype == engine->panel_element &&
                packed.numel() == packed_numel(*engine, groups.count, depth, columns));
  const Matrix &from = forward ? x : y, &to = forward ? y : x;
  gemm::multiply(ctx, *engine, groups, columns, depth, from, packed.data, to, accumulate,
                 form_of(ctx, pass, compute, to.dtype, groups, T, N, K));
}

// One group that owns all rows.
struct Dense {
  int32_t row_of_group[2];
  Groups groups() const { return {.count = 1, .own_rows = true, .row_of_group = row_of_group}; }
};
Dense dense(const Matrix& x) {
  return {{0, int32_t(x.rows)}};
}

Groups rows_of(const Context& ctx, const Matrix& x, const Tensor& row_of_group_G1) {
  const int64_t count = row_of_group_G1.numel() - 1;
  if (ctx.meta()) return {.count = count, .own_rows = true};
  const auto rows = row_of_group_G1.span<const int32_t>();
  ASHLAR_ASSERT(rows.front() == 0 && rows.back() <= x.rows);
  return {.count = count, .own_rows = true, .row_of_group = rows};
}

Groups columns_of(const Operand& w) {
  return {.count = w.groups(), .own_rows = false};
}

}  // namespace

OperandLayout operand_layout(const Context& ctx, int64_t groups, int64_t n, int64_t k,
                             DType compute, bool for_backward) {
  const Engine* engine = gemm::engine_for(ctx, compute);
  if (!engine) return {compute, 0, 0};
  if (!for_backward) engine = &gemm::engine_of_panels(*engine, compute);
  return {engine->panel_element, packed_numel(*engine, groups, k, n),
          for_backward ? packed_numel(*engine, groups, n, k) : 0};
}

void pack(const Context& ctx, const Operand& w) {
  if (!ctx.meta()) gemm::pack_operand(ctx, gemm::packing_engine(ctx, w.forward.dtype), w);
}

void round_to_int8(const Context& ctx, DType compute, Operand& w) {
  const Engine* engine = gemm::engine_for(ctx, compute);
  if (!engine) return;
  const gemm::Int8Form form(*engine, w.groups(), w.n(), w.k());
  if (form.bytes > w.forward.bytes()) return;
  if (!ctx.meta()) gemm::pack_int8(ctx, *engine, w.groups(), w.n(), w.k(), w.w, w.forward.data);
  w.forward = {w.forward.data, DType::kI8, w.forward.device, {form.bytes}};
}

void linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                    const Matrix& y, bool accumulate) {
  run(ctx, Pass::kForward, compute, dense(x).groups(), x, y, w, accumulate);
}

void linear_backward_input(const Context& ctx, DType compute, const Matrix& dy, const Operand& w,
                           const Matrix& dx, bool accumulate) {
  run(ctx, Pass::kBackwardInput, compute, dense(dx).groups(), dx, dy, w, accumulate);
}

void linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy, const Matrix& x,
                            const Tensor& dw, bool accumulate) {
  run(ctx, Pass::kBackwardWeight, compute, dense(x).groups(), x, dy, {dw, {}, {}}, accumulate);
}

void grouped_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                            const Tensor& row_of_group_G1, const Matrix& y) {
  run(ctx, Pass::kForward, compute, rows_of(ctx, x, row_of_group_G1), x, y, w, false);
}

void grouped_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                   const Operand& w, const Tensor& row_of_group_G1,
                                   const Matrix& dx) {
  run(ctx, Pass::kBackwardInput, compute, rows_of(ctx, dx, row_of_group_G1), dx, dy, w, false);
}

void grouped_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                    const Matrix& x, const Tensor& row_of_group_G1,
                                    const Tensor& dw, bool accumulate) {
  run(ctx, Pass::kBackwardWeight, compute, rows_of(ctx, x, row_of_group_G1), x, dy, {dw, {}, {}},
      accumulate);
}

void blockdiag_linear_forward(const Context& ctx, DType compute, const Matrix& x, const Operand& w,
                              const Matrix& y) {
  run(ctx, Pass::kForward, compute, columns_of(w), x, y, w, false);
}

void blockdiag_linear_backward_input(const Context& ctx, DType compute, const Matrix& dy,
                                     const Operand& w, const Matrix& dx) {
  run(ctx, Pass::kBackwardInput, compute, columns_of(w), dx, dy, w, false);
}

void blockdiag_linear_backward_weight(const Context& ctx, DType compute, const Matrix& dy,
                                      const Matrix& x, const Tensor& dw, bool accumulate) {
  const Operand w{dw, {}, {}};
  run(ctx, Pass::kBackwardWeight, compute, columns_of(w), x, dy, w, accumulate);
}

}  // namespace ashlar::kernels::cpu
