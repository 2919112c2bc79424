// Low-rank adapters of linear layers (LoRA), and what a run freezes.  An adapter is a part of its
// Weight; the layers of nn call the functions below instead of the products of kernels/linear.h,
// and know no more of it.
//
//   y = x W^T + scale (x A^T) B^T       W is frozen; A [r, K] and B [N, r] are trained
//   u = scale x A^T,  v = scale dy B    kept nowhere: each product that reads them makes them again
//   dx = dy W + v A,  dA = v^T x,  dB = dy^T u
//
// Each tensor of a fused product (q, k and v are one) has an adapter of its own, on its columns of
// y.  Where tensor parallelism cuts the rows of W, B is cut and A is whole on every share; where it
// cuts the columns, A is cut and B is whole.  The gradient of the whole one is a partial sum.
//
// Experts have A and B of their own each, in stacks.  These are products of the experts' unit, as
// the experts are; all other adapters belong to the root.  Adapters of experts are cut likewise,
// but the gradient of the half that is whole is not a partial sum: ranks add up v where they cut
// the rows of W, and u where they cut the columns, and then all of them compute it.
//
// Source   arXiv:2106.09685.  A begins uniform in +-1/sqrt(K), as in PEFT, and B with zeros, so
//          that the first step begins with the outputs of the model without adapters.
// Types    u and v in the activation type; A, B and their gradients in the wide type.
// Cost     forward 2 r (K + N) flop a token beside the 2 K N of W; backward twice that, and u
//          again.
#pragma once

#include "ashlar/nn/branch.h"
#include "ashlar/spec/tune_spec.h"

namespace ashlar::nn {

// y = x W^T with the adapters of w (+ y if accumulate).
void adapted_forward(const kernels::Context&, const Pass&, const kernels::Matrix& x,
                     const Weight& w, const kernels::Matrix& y, bool accumulate = false);
// dx = the gradient of x (+ dx if accumulate), and adds to the gradients of A.  A dx without
// columns is left out.
void adapted_backward_input(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                            const Weight& w, const kernels::Matrix& x, const kernels::Matrix& dx,
                            bool accumulate = false);
// The gradient of W unless it is frozen, as weight_gradient (late_products.h), and adds to those of
// B.
void adapted_backward_weight(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                             const kernels::Matrix& x, const Weight& w);

// The same of a stack of experts; row_of_group as in linear.h.  y and dx are overwritten.  room:
// rows that memory for gradients is taken for, at least those of x.
void adapted_grouped_forward(const kernels::Context&, const Pass&, const kernels::Matrix& x,
                             const Weight& w, const Tensor& row_of_group, const kernels::Matrix& y);
// dx, and the gradients of W, unless it is frozen, and of adapters.
void adapted_grouped_backward(const kernels::Context&, const Pass&, const kernels::Matrix& dy,
                              const Weight& w, const kernels::Matrix& x, const Tensor& row_of_group,
                              const kernels::Matrix& dx, int64_t room);

// Marks what `tune` freezes of the tensors of `stored`.
// Errors  kConfig where it freezes one of several that are one product.
void freeze(const TuneSpec& tune, Stored& stored);
// Gives the Weight its adapters, and visits their tensors.
void list_adapters(const TuneSpec& tune, const Stored& stored, StoredVisitor visit);
// kConfig for a pattern that no tensor of the model matches, a target that no linear layer matches,
// and if nothing is left to train.
void require_tunable(const ModelSpec& model, const TuneSpec& tune);

}  // namespace ashlar::nn
