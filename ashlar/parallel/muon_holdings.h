// Muon on a mesh: the pieces that every rank keeps of every matrix, in the form that muon_plan.h
// takes, and the object that gathers the matrices of this rank.
//
// With ZeRO the ranks of the model group keep pieces.  Without it every data rank has a whole copy,
// and only tensor and expert parallelism divide matrices, so a plan over ep x tp ranks is enough.
#pragma once

#include <memory>

#include "ashlar/optim/matrices.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

// whole: the model of all ranks.  parameters: the optimizer's, with kinds and numbers of matrices
// as the recipe chooses, in the order of zero.parameters().  Groups and gradients must outlive the
// result.
std::unique_ptr<optim::Matrices> make_matrices(Allocator&, const Groups&, const ModelSpec& whole,
                                               const ParallelSpec&, const Zero&,
                                               const std::vector<Parameter>& parameters,
                                               const OptimSpec&, const nn::Types&);

}  // namespace ashlar::parallel
