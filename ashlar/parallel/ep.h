// Expert parallelism: each of the ep ranks, which have different tokens, holds E / ep of the
// experts.  Rows of tokens are sent to the ranks of their experts, and results are sent back; in
// backward the results' gradients are sent, and those of the rows come back.  Dropless.
//
// First all ranks exchange their counts of rows (count).  The rows for a rank, sorted by expert,
// then by the rank that they come from, are cut into windows, one a round.  All windows of a layer
// and micro-batch have the same length, except that the last may be shorter.  There are at least
// two rounds, so that experts compute one while the next is in flight, and enough that each fits
// into the room of the most loaded rank.
//
//   op            label                  bytes, from a rank to all others
//   all_gather    "expert counts"        4 (E + 1) to each, forward (and where it is recomputed)
//   send_receive  "expert rows"          a H for each row whose expert is elsewhere, forward
//                 "expert results"       a H for each row of another rank, forward
//                 "expert gradients"     a H, as "expert rows", backward
//                 "expert input gradients"  a H, as "expert results", backward
//                 "expert rows recompute"  as "expert rows", backward, but for the last two rounds
//
// a: bytes of the activation type.  A dry run, which has no tokens, sends the bytes of an even
// load.
//
// Source   GShard, arXiv:2006.16668; dropless: MegaBlocks, arXiv:2211.15841.
// Memory   rooms of the branch (nn/moe.h): Share::expert_rows times the rows of an even load.
// Limits   the host waits for the counts of each layer, which it downloads and exchanges: they
//          determine the sizes of messages.
// Errors   kComm, as comm/group.h.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/exchange.h"
#include "ashlar/parallel/tp.h"

namespace ashlar::parallel {

class EpExchange final : public nn::ExpertExchange {
 public:
  // tp: ranks that share the experts' width (ExpertSums).  rows_here: rows that a room holds.
  EpExchange(comm::Group& ep, comm::Group& tp, int64_t num_experts, int64_t rows_here);

  int count(const kernels::Context&, const kernels::RoutePlan&, std::span<int32_t> counts) override;
  void post_rows(const kernels::Context&, const nn::ExpertRound&) override;
  nn::ExpertRows receive_rows(const kernels::Context&, const nn::ExpertRound&) override;
  void post_results(const kernels::Context&, const nn::ExpertRound&) override;
  void receive_results(const kernels::Context&, const nn::ExpertRound&) override;
  void sum_partial(const Tensor& gradients) override {
    if (tp_.size() > 1) sums_.sum_partial(gradients);
  }
  void sum_adapted(const kernels::Context& ctx, const Tensor& rows) override {
    if (tp_.size() > 1) sums_.sum_adapted(ctx, rows);
  }
  bool leads() const override { return sums_.leads(); }

  // Numbers of rounds and of mixtures that ran since the last call.
  struct Rounds {
    int64_t rounds = 0, mixtures = 0;
  };
  Rounds take_rounds() { return std::exchange(rounds_, {}); }

 private:
  struct Run {                  // rows of one expert and one source that are in a round
    int64_t here, there, rows;  // first row at the experts' rank, of the round; at the source
  };
  struct Messages {
    std::vector<comm::Transfer> sends, receives;
    comm::Work work;
  };
  // The first row of an expert in the rows of a source.
  int64_t row_at(const nn::ExpertRound&, int source, int64_t expert) const;
  int64_t rows_for(const nn::ExpertRound&, int rank) const;
  int64_t window(const nn::ExpertRound&) const;
  // Calls use(source, expert of the rank, run) for all rows that the round brings to the rank.
  template <typename Use>
  void for_each_run(const nn::ExpertRound&, int rank, Use use) const;
  Messages& under_way(const nn::ExpertRound& round, bool results);

  comm::Group &ep_, &tp_;
  ExpertSums sums_;
  const int64_t num_experts_, experts_here_, rows_here_;
  Rounds rounds_;
  std::array<std::array<std::array<Messages, 2>, 2>, 3> messages_;  // by kind, room, way
  std::vector<int32_t> row_of_expert_;
};

}  // namespace ashlar::parallel
