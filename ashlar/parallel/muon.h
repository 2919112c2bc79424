// Muon for matrices that are spread over any number of ranks: gathers the pieces of split matrices,
// orthogonalises them, and leaves every rank its own elements, in its gradients.
//
//   start    posts the gathers of rounds 0 and 1
//   finish   whole matrices; then, round by round: wait for the gather, Newton-Schulz, post the
//            scatter of this round and the gather of the next but one, which run under the
//            Newton-Schulz of the next round
//
// Numerics the same bits as whole matrices on one rank.
// Traffic  for one split matrix of S bytes, p of them on this rank, with k holders:
//
//            mode                sent          received
//            replicate           (k - 1) p     S - p
//            owner: the owner    S - p         S - p
//            owner: others       p             p
//
//          Launches: one gather in every round in which this rank shares a matrix with another,
//          and one scatter in every such round with a matrix in owner mode.  Both are send_receive.
// Memory   two buffers of Tag::kCommunication, as large as the largest split matrix that this rank
//          works on in even and in odd rounds: at most twice the largest matrix.  A matrix that
//          arrives in columns is put in order through the workspace, while Newton-Schulz does not
//          use it.
#pragma once

#include "ashlar/comm/group.h"
#include "ashlar/optim/matrices.h"
#include "ashlar/parallel/muon_plan.h"

namespace ashlar::parallel {

class DistributedMatrices final : public optim::Matrices {
 public:
  // The ranks of the plan are those of the group.  gradients: of this rank's holdings, in their
  // order.  Gradients and group must outlive this object.
  DistributedMatrices(Allocator&, comm::Group&, MuonPlan plan, std::vector<Tensor> gradients,
                      DType compute, int num_steps);
  void start(const kernels::Context&) override;
  void finish(const kernels::Context&) override;

 private:
  struct Exchange {
    std::vector<comm::Transfer> sends, receives;
    comm::Work work;
  };
  struct Round {
    const MuonMatrix* mine = nullptr;  // the matrix that this rank works on; null: none
    Tensor gathered;                   // its elements
    Exchange gather, scatter;
  };
  void take_buffers(Allocator&);
  void list_transfers(const MuonMatrix&, Round&);
  Tensor own(const MuonSegment&) const;
  void post(Exchange&, std::string_view label);
  void work_on(const kernels::Context&, const Round&) const;
  // Moves elements that are stored segment after segment into rows, or back.
  void put_in_order(const kernels::Context&, const Round&, bool by_rows) const;

  comm::Group& group_;
  const MuonPlan plan_;
  const std::vector<Tensor> gradients_;  // one-dimensional
  const DType compute_;
  const int num_steps_;
  std::vector<std::vector<Tensor>> stacks_GMN_;  // whole matrices, by shape
  OwnedTensor buffers_[2];                       // for even and odd rounds
  std::vector<Round> rounds_;  // up to the last one of this rank; some may be empty
};

}  // namespace ashlar::parallel
