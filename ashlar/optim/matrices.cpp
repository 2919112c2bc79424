#include "ashlar/optim/matrices.h"

#include <algorithm>

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

std::vector<std::vector<Tensor>> by_shape(const std::vector<Tensor>& stacks_GMN) {
  std::vector<std::vector<Tensor>> groups;
  for (const Tensor& x_GMN : stacks_GMN) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return group[0].shape[1] == x_GMN.shape[1] && group[0].shape[2] == x_GMN.shape[2];
    });
    same != groups.end() ? same->push_back(x_GMN) : groups.push_back({x_GMN});
  }
  return groups;
}

LocalMatrices::LocalMatrices(const std::vector<Parameter>& parameters, DType compute, int num_steps)
    : compute_(compute), num_steps_(num_steps) {
  std::vector<Tensor> stacks_GMN;
  for (const Parameter& p : parameters) {
    if (p.kind != OptimizerKind::kMuon || p.begin == p.end) continue;
    const MatrixShape matrix = matrix_shape(p);
    ASHLAR_ASSERT(is_stack(p, matrix.numel()));
    stacks_GMN.push_back(
        p.gradient.view({p.gradient.numel() / matrix.numel(), matrix.rows, matrix.cols}));
  }
  stacks_GMN_ = by_shape(stacks_GMN);
}

void LocalMatrices::finish(const kernels::Context& ctx) {
  for (const std::vector<Tensor>& group : stacks_GMN_)
    kernels::orthogonalize(ctx, compute_, std::span(group), num_steps_);
}

}  // namespace ashlar::optim
