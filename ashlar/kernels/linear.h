// Matrix products of weights and activations: y = x W^T and its two gradients, dense and grouped
// (experts of a stack; heads of the grouped convolution).
//
// Shapes   T tokens (rows), N = out features, K = in features, G groups.  W [N, K] row-major; a
//          stack is W [G, N, K].
// Types    x, dy, y, dx are F32, BF16 or F64.  compute = BF16: operands are rounded to bf16,
//          products are summed in fp32; F32: fp32 throughout; F64: fp64.  W (master) is F32, or F64
//          in the fp64 run.
// Cost     2*T*N*K flop; bytes: every operand once.
// Numerics each output element is summed in an order that depends on the shapes only: the same bits
//          for any thread count.
// Record   named after the function.
// Engines  own packed micro-kernels: AMX, AVX-512 BF16, and fp32 for AVX-512, AVX2 and x86-64,
//          which also serve bf16 if the machine has no bf16 products; the plain reference (fp64,
//          and any type on request).  Measured beside oneDNN in docs/bench/products.md.
// Memory   copies of activations (converted, or packed along tokens for dw) live in ctx.workspace
//          during the call; those of the fp32 engine on the stacks of its threads.
#pragma once

#include "ashlar/kernels/context.h"
#include "ashlar/kernels/matrix.h"

namespace ashlar::kernels {

// A weight in the form that the products of this machine read.  Packed tensors are absent if the
// engine in use reads W itself; `backward` alone, if it reads `forward` in both directions.  The
// owner of the weights owns them (tag kWeights).
struct Operand {
  Tensor w;         // [N, K] or [G, N, K], master
  Tensor forward;   // packed for y = x W^T
  Tensor backward;  // packed for dx = dy W
  int64_t groups() const { return w.shape.ndim() == 3 ? w.shape[0] : 1; }
  int64_t n() const { return w.shape[w.shape.ndim() - 2]; }
  int64_t k() const { return w.shape[w.shape.ndim() - 1]; }
};

// Shapes and dtype of the packed forms that this machine uses for [G,] N, K at this compute
// precision (absent tensors if it uses none).  for_backward false: inference, only `forward`.
struct OperandLayout {
  DType dtype = DType::kBF16;
  int64_t forward_numel = 0, backward_numel = 0;
};
OperandLayout operand_layout(const Context&, int64_t groups, int64_t n, int64_t k, DType compute,
                             bool for_backward);
// Refreshes the packed forms from w, once per optimizer step; does nothing if there are none.
void pack(const Context&, const Operand&);

// y [T,N] = x [T,K] W^T (+ y if accumulate).  W is one matrix.
void linear_forward(const Context&, DType compute, const Matrix& x, const Operand& w,
                    const Matrix& y, bool accumulate = false);
// dx [T,K] = dy [T,N] W (+ dx).
void linear_backward_input(const Context&, DType compute, const Matrix& dy, const Operand& w,
                           const Matrix& dx, bool accumulate = false);
// dw [N,K] += dy^T x; without accumulate = dy^T x, and dw is not read.  dw is F32 (F64).
void linear_backward_weight(const Context&, DType compute, const Matrix& dy, const Matrix& x,
                            const Tensor& dw, bool accumulate = true);

// Grouped by rows (experts): group g owns rows [row_of_group[g], row_of_group[g+1]) of x and y; a
// group may own none, and rows from row_of_group[G] on belong to no group.  row_of_group is I32
// [G+1] in the memory of the device, first 0.  Cost counts all rows: the host does not read the
// entries.
void grouped_linear_forward(const Context&, DType compute, const Matrix& x, const Operand& w,
                            const Tensor& row_of_group_G1, const Matrix& y);
void grouped_linear_backward_input(const Context&, DType compute, const Matrix& dy,
                                   const Operand& w, const Tensor& row_of_group_G1,
                                   const Matrix& dx);
void grouped_linear_backward_weight(const Context&, DType compute, const Matrix& dy,
                                    const Matrix& x, const Tensor& row_of_group_G1,
                                    const Tensor& dw, bool accumulate = true);

// Grouped by columns (heads of the grouped convolution): group g reads columns [g*K, (g+1)*K) of x
// and writes columns [g*N, (g+1)*N) of y.
void blockdiag_linear_forward(const Context&, DType compute, const Matrix& x, const Operand& w,
                              const Matrix& y);
void blockdiag_linear_backward_input(const Context&, DType compute, const Matrix& dy,
                                     const Operand& w, const Matrix& dx);
void blockdiag_linear_backward_weight(const Context&, DType compute, const Matrix& dy,
                                      const Matrix& x, const Tensor& dw, bool accumulate = true);

}  // namespace ashlar::kernels
