// Muon on a mesh: what every rank keeps of every matrix, as muon_plan.h asks for it, and who brings
// the matrices of this rank together.
//
// With ZeRO the ranks of the model group keep pieces; without, every data rank has a whole copy and
// only tensor and expert parallelism divide matrices, so that ep x tp ranks are enough.
#pragma once

#include <memory>

#include "ashlar/optim/matrices.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

// whole: the model of all ranks.  parameters: those of the optimizer, whose kinds and numbers of
// matrices are the recipe's, in the order of zero.parameters().  Groups and gradients must outlive
// the result.
std::unique_ptr<optim::Matrices> make_matrices(Allocator&, const Groups&, const ModelSpec& whole,
                                               const ParallelSpec&, const Zero&,
                                               const std::vector<Parameter>& parameters,
                                               const OptimSpec&, const nn::Types&);

}  // namespace ashlar::parallel
