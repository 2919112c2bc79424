// Tensor parallelism: the layers of nn run on the rank's heads and its part of the expert width,
// and their outputs are added up over the tp ranks.  The operations:
//
//                          as they are                   sequence_parallel
//   forward  attention     all_reduce "tp attention"     all_gather "tp attention input",
//                                                        reduce_scatter "tp attention"
//            experts       all_reduce "tp feed-forward"       the same two of "tp feed-forward"
//   backward attention     all_reduce                    all_gather "tp attention input" and
//                          "tp attention gradient"       "tp attention output gradient",
//                                                        reduce_scatter "tp attention gradient"
//            experts       all_reduce                    the same three of "tp feed-forward"
//                          "tp feed-forward gradient"
//            router        all_reduce "tp router"        the same
//            adapters      all_reduce "tp adapters"      the same
//            of experts
//   linear mixers of GLA (backward) and Lightning (both): all_reduce "tp heads"
//   over ranks that share keys: all_reduce "tp query sums" forward, "tp key gradients" backward.
//
// The router runs whole on every rank, with the same bits.  With sequence_parallel the stream,
// norms and merges have 1/tp of the tokens: TokenCounts{T / tp, T}.  The sequence of the call has
// all T tokens, its ids are those of the rank.
//
// Cost     docs/parallel/tp.md has the bytes.  Each call waits for its operations.
// Memory   sums in place; gathered tensors [T, H] come from ctx.workspace.
// Errors   kComm, as comm/group.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ashlar/comm/group.h"
#include "ashlar/nn/branch.h"

namespace ashlar::parallel {

// Sums over the ranks that hold the same key heads.
class HeadSums final : public nn::HeadExchange {
 public:
  // sharers: number of adjacent tp ranks that hold the same key heads.  Returns null if it is 1.
  // All ranks of tp call it in the same order among the splits of their groups.
  static std::unique_ptr<HeadSums> among(const comm::Group& tp, int sharers);
  void sum_queries(const Tensor& q_sum_TKD) override;
  void sum_key_gradients(const Tensor& gradients) override;
  bool leads() const override { return sharers_->rank() == 0; }
  const comm::Group& sharers() const { return *sharers_; }

 private:
  explicit HeadSums(std::unique_ptr<comm::Group> sharers) : sharers_(std::move(sharers)) {}
  std::unique_ptr<comm::Group> sharers_;
};

// Sums over all ranks, each of which holds some heads of a layer.
class TpSums final : public nn::LayerSums {
 public:
  explicit TpSums(comm::Group& tp) : tp_(tp) {}
  void sum(const Tensor& partial) override;
  bool leads() const override { return tp_.rank() == 0; }

 private:
  comm::Group& tp_;
};

// Sums over the ranks that hold parts of the experts' width.
class ExpertSums final : public nn::ExpertExchange {
 public:
  explicit ExpertSums(comm::Group& tp) : tp_(tp) {}
  void sum_partial(const Tensor& dweight_T) override;
  void sum_adapted(const kernels::Context&, const Tensor& rows) override;
  bool leads() const override { return tp_.rank() == 0; }

 private:
  comm::Group& tp_;
};

// A branch whose layer has a part of the heads or of the width; adds up the outputs of all parts.
class TpBranch final : public nn::Branch {
 public:
  // inner: lists one of tp.size() shares.  name: label of the operations, such as "tp attention".
  TpBranch(std::unique_ptr<nn::Branch> inner, comm::Group& tp, const std::string& name,
           bool sequence_parallel);

  void list(const nn::LayerSpec& layer, nn::StoredVisitor visit) override {
    inner_->list(layer, visit);
  }
  nn::BranchNeeds needs() const override { return inner_->needs(); }
  void lay_out(const nn::SavedArenas& arenas, const nn::Types& types, const nn::PassShape& shape,
               int slot) override {
    inner_->lay_out(arenas, types, shape, slot);
  }
  void forward(const kernels::Context&, const nn::Pass&, int part, const Tensor& a_TH,
               const nn::Carry&, const Tensor& o_TH) override;
  void backward(const kernels::Context&, const nn::Pass&, int part,
                const nn::BackwardTensors&) override;
  std::optional<nn::ExpertLoad> load(int slot) const override { return inner_->load(slot); }

 private:
  // Memory for all tokens, or the part itself if the stream is not sharded.  operand_room: for an
  // operand of a gradient of weights, which may be deferred (nn/late_products.h).
  Tensor room(const kernels::Context&, const Tensor& part) const;
  Tensor operand_room(const kernels::Context&, const nn::Pass&, const Tensor& part) const;
  Shape whole(const Tensor& part) const;
  comm::Work gather(const Tensor& part, const Tensor& all, std::string_view label);
  void add_up(const Tensor& all, const Tensor& part, std::string_view label);

  std::unique_ptr<nn::Branch> inner_;
  comm::Group& tp_;
  const bool sequence_parallel_;
  Tensor a_, o_, d_o_, da_;  // all tokens; from the first part to the last
  Tensor o_sum_;             // the part of o_ summed, in the wide type as o_
  const std::string output_, input_, output_gradient_, gradient_;  // labels
};

}  // namespace ashlar::parallel
