// Muon on a mesh: the pieces that every rank keeps of every matrix, in the form that muon_plan.h
// takes, and the object that gathers the matrices of this rank.
//
// With ZeRO the ranks of the model group keep pieces.  Without it every data rank has a whole copy,
// and only tensor and expert parallelism divide matrices, so a plan over ep x tp ranks is enough.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ashlar/core/function_ref.h"
#include "ashlar/optim/matrices.h"
#include "ashlar/parallel/mesh.h"
#include "ashlar/parallel/muon_plan.h"
#include "ashlar/parallel/zero.h"

namespace ashlar::parallel {

// Plans that the dry runs of several ranks of one mesh and one recipe share, by the ranks that they
// are of.  From any thread.
class SharedMuonPlans {
 public:
  std::shared_ptr<const MuonPlans> get(std::span<const int> ranks,
                                       function_ref<std::shared_ptr<const MuonPlans>()> make);

 private:
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<const MuonPlans>> of_ranks_;
};

// Makes the objects that orthogonalise the matrices of a rank.
class MuonMatrices {
 public:
  // recipe: of the model of all ranks; resolved: its mesh.  shared: null where each process has one
  // rank.  Groups must outlive this object.
  MuonMatrices(const Groups&, const Recipe& recipe, const ParallelSpec& resolved, const Zero&,
               const nn::Types&, SharedMuonPlans* shared);

  // The ranks that keep the matrices here.
  comm::Group& group() const { return group_; }
  // The number that a rank with the same share has in that group, or, without shards, in the like
  // group of its own.
  int number_of(int world_rank) const;
  // group: the one above, or a recording world as large, with the number of the rank there.
  // parameters: the optimizer's, with kinds and numbers of matrices as the recipe chooses, in the
  // order of zero.parameters().  Group and gradients must outlive the result.
  std::unique_ptr<optim::Matrices> make(Allocator&, comm::Group& group,
                                        const std::vector<Parameter>& parameters) const;

 private:
  comm::Group& group_;
  const bool sharded_;
  const DType compute_;
  const int num_steps_;
  std::shared_ptr<const MuonPlans> plans_;  // null: the group has one rank
};

}  // namespace ashlar::parallel
