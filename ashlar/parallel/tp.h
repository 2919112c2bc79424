// Runs the blocks of a tensor-parallel rank: the layers of nn on the rank's heads and its part of
// the expert width, then sums over the tp ranks of what each layer returns.  The operations:
//
//                          as they are                   sequence_parallel
//   forward  attention     all_reduce "tp attention"     all_gather "tp attention input",
//                                                        reduce_scatter "tp attention"
//            experts       all_reduce "tp experts"       the same two of "tp experts"
//   backward attention     all_reduce                    all_gather "tp attention input" and
//                          "tp attention gradient"       "tp attention output gradient",
//                                                        reduce_scatter "tp attention gradient"
//            experts       all_reduce                    the same three of "tp experts"
//                          "tp experts gradient"
//            router        all_reduce "tp router"        the same
//   where ranks share keys, among those: all_reduce "tp query sums" forward, "tp key gradients"
//   backward.
//
// The router runs whole on every rank and gives the same bits there.  With sequence_parallel the
// stream, norms and merges have 1/tp of the tokens: TokenCounts{T / tp, T}; the sequence of the
// call is that of all T tokens, its ids are the rank's.
//
// Cost     docs/parallel-tp.md has the bytes.  Each call waits for its operations.
// Memory   sums in place; gathered tensors [T, H] come from ctx.workspace.
// Errors   kComm, as comm/group.h.
#pragma once

#include <memory>
#include <string_view>

#include "ashlar/comm/group.h"
#include "ashlar/nn/model.h"

namespace ashlar::parallel {

// Sums over the ranks that hold the same key heads.
class HeadSums final : public nn::HeadExchange {
 public:
  explicit HeadSums(std::unique_ptr<comm::Group> sharers) : sharers_(std::move(sharers)) {}
  void sum_queries(const Tensor& q_sum_TKD) override;
  void sum_key_gradients(const Tensor& gradients) override;
  bool leads() const override { return sharers_->rank() == 0; }
  const comm::Group& sharers() const { return *sharers_; }

 private:
  std::unique_ptr<comm::Group> sharers_;
};

// Sums over the ranks that hold parts of the experts' width.
class ExpertSums final : public nn::ExpertExchange {
 public:
  explicit ExpertSums(comm::Group& tp) : tp_(tp) {}
  void sum_partial(const Tensor& dchosen_T) override;
  bool leads() const override { return tp_.rank() == 0; }

 private:
  comm::Group& tp_;
};

class TpRunner final : public nn::BlockRunner {
 public:
  // model: of nn::Share::even(tp.rank(), tp.size()); must outlive this.  Every rank of tp makes
  // its runner at the same place among the splits of its groups.
  TpRunner(comm::Group& tp, const nn::Model& model, bool sequence_parallel);

  void attention_forward(const kernels::Context&, const nn::AttentionCall&,
                         const nn::BlockSaved&) override;
  void attention_backward(const kernels::Context&, const nn::AttentionCall&, const nn::BlockSaved&,
                          const Tensor& do_TH, const Tensor& da_TH) override;
  void moe_forward(const kernels::Context&, const nn::AttentionCall&, const nn::BlockSaved&,
                   const Tensor& r_prev_TR) override;
  void moe_backward(const kernels::Context&, const nn::AttentionCall&, const nn::BlockSaved&,
                    const Tensor& r_prev_TR, const Tensor& de_TH, const Tensor& dr_next_TR,
                    const Tensor& dr_prev_TR, const Tensor& dm_TH) override;
  // Null where nobody shares keys.
  const comm::Group* sharers() const { return heads_ ? &heads_->sharers() : nullptr; }

 private:
  nn::AttentionCall shared(const nn::AttentionCall& call);
  // Room for all tokens: the part itself where the stream is not sharded.
  Tensor room(const kernels::Context&, const Tensor& part) const;
  comm::Work gather(const Tensor& part, const Tensor& all, std::string_view label);
  void add_up(const Tensor& all, const Tensor& part, std::string_view label);

  comm::Group& tp_;
  std::unique_ptr<HeadSums> heads_;  // null: nobody shares keys
  ExpertSums experts_;
  const nn::Model& model_;
  const bool sequence_parallel_;
};

}  // namespace ashlar::parallel
