#include "ashlar/optim/matrices.h"

#include "ashlar/kernels/newton_schulz.h"

namespace ashlar::optim {
namespace {

// The kept elements of `p` as a stack of whole matrices.
bool is_stack(const Parameter& p, int64_t matrix_numel) {
  if (p.begin % matrix_numel != 0 || p.end % matrix_numel != 0 || p.boxes.size() != 1) return false;
  // They are contiguous in the logical tensor, in which every matrix is one stretch.
  const Box &box = p.boxes[0], whole = Box::whole(p.logical.global_shape);
  for (int dim = 1; dim < box.length.ndim(); ++dim)
    if (box.length[dim] != whole.length[dim]) return false;
  const int64_t row_numel = whole.length.numel() / whole.length[0];
  return box.offset[0] * row_numel % matrix_numel == 0;
}

}  // namespace

LocalMatrices::LocalMatrices(const std::vector<Parameter>& parameters, DType compute, int num_steps)
    : compute_(compute), num_steps_(num_steps) {
  for (const Parameter& p : parameters) {
    if (p.kind != OptimizerKind::kMuon || p.begin == p.end) continue;
    const MatrixShape matrix = matrix_shape(p);
    ASHLAR_ASSERT(is_stack(p, matrix.numel()));
    stacks_GMN_.push_back(
        p.gradient.view({p.gradient.numel() / matrix.numel(), matrix.rows, matrix.cols}));
  }
}

void LocalMatrices::finish(const kernels::Context& ctx) {
  for (const Tensor& stack_GMN : stacks_GMN_)
    kernels::orthogonalize(ctx, compute_, stack_GMN, num_steps_);
}

}  // namespace ashlar::optim
