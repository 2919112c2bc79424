// Context parallelism for softmax attention: the ranks of a group hold stretches of every sequence
// (cp_split.h).  What crosses them, forward and backward:
//
//   halo    the last rows of every stretch that a mixer reads before a token (nn::Strip) go to the
//           rank that holds the next token: one message per border and direction, all rows
//           together, whether or not a document crosses it
//   keys    gather: keys and values of all ranks are gathered for each layer, once more in
//           backward; their gradients are reduce-scattered
//           ring: they travel from rank to rank while attention runs over those that are here, and
//           results are merged; in backward the gradients of a part travel behind it, home at last
//           all_to_all: queries travel too, for all tokens of some heads (cp_heads.h)
//
//   states  of linear mixers, each brought to the chunks that it enters (cp_states.h)
//
//   rows    what a router counts of a row is added up over the ranks that hold its tokens
//
// Source   docs/parallel/cp.md: who holds what, and bytes and launches as closed formulas.
// Memory   buffers are taken once (Tag::kCommunication); scratch from ctx.workspace, the same for
//          all documents.
// Numerics sums over ranks: gather in group order; ring the ranks after a part's owner in order,
//          then added to the owner's own.  The same bits for any timing.
// Limits   every segment of the whole rows starts its document and lies in one row.  One
//          micro-batch at a time: segments, halos and what the keys of each rank can be seen by are
//          members that `assign` replaces, so that forward and backward of a micro-batch each need
//          it to be the one that was assigned last.
// Errors   kConfig where the rows cannot be cut evenly (CpSplit::check); those of comm::Group.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/kernels/copy.h"
#include "ashlar/nn/branch.h"
#include "ashlar/parallel/cp_split.h"
#include "ashlar/parallel/cp_states.h"

namespace ashlar::parallel {

// How keys, and states, reach the ranks.
struct CpKinds {
  CpExchange keys = CpExchange::kAllGather;
  StateExchange states = StateExchange::kAllGather;
};

class CpSequence : public nn::SequenceExchange {
 public:
  // The next micro-batch: documents of the whole rows, the same on every rank.  Not read from
  // tensors: on meta a dry run gives one document per row, which every other list costs at most.
  // Allocates nothing.
  void assign(std::span<const Segment> whole_rows);
  // This rank's tokens of it; what forward and backward are called with.
  const kernels::Sequence& sequence() const { return sequence_; }

  void halo_forward(const kernels::Context&, const nn::Pass&, std::span<const nn::Strip>) final;
  void halo_backward(const kernels::Context&, const nn::Pass&, std::span<const nn::Strip>) final;
  void sum_over_rows(const Tensor& of_rows) final;

  std::span<const kernels::StateChunk> chunks(const nn::Pass&) final { return states_->chunks(); }
  bool shares_states() const final { return true; }
  void post_states(const kernels::Context& ctx, const nn::Pass&, const nn::StateMaps& x) final {
    states_->post(ctx, x);
  }
  void finish_states(const kernels::Context& ctx, const nn::Pass&, const nn::StateMaps& x) final {
    states_->finish(ctx, x);
  }
  void pass_on_states(const kernels::Context& ctx, const nn::Pass&, const nn::StateMaps& x) final {
    states_->pass_on(ctx, x);
  }
  // Waits for what was passed on.
  void finish_sends() {
    if (states_) states_->finish_sends();
  }
  // Null: no mixer has states.
  const CpStates* states() const { return states_.get(); }

 protected:
  // needs: of the heads that stand here, alike in all blocks.
  CpSequence(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs,
             const nn::Types& types, Allocator& allocator);

  comm::Group& ranks_;
  const CpSplit split_;
  std::vector<std::vector<Segment>> parts_;  // by rank: its segments, in its own rows

 private:
  friend std::unique_ptr<CpSequence> make_cp_sequence(const CpKinds&, comm::Group&, const CpSplit&,
                                                      const nn::ExchangeNeeds&, const nn::Types&,
                                                      Allocator&);
  // The borders where stretches of this rank meet those of others, on one of their two sides, and
  // the messages that cross there.
  struct Side {
    struct Border {
      int rank;       // the one that holds the other side
      int64_t local;  // first token behind the border, in the rank's part of a row
    };
    std::vector<Border> borders;
    OwnedTensor memory;  // [borders, rows, width]: strip after strip, older rows first
    std::vector<comm::Transfer> transfers;
    kernels::Matrix message(size_t border) const;  // [rows, width]
    void take(Allocator& allocator, DType dtype, int64_t num_rows, int64_t width);
  };
  // By steps back from a segment, from one on: pairs of halos, which the segments that continue a
  // document have in their order, and rows of the memory of `before_`; a document that begins
  // between has none.
  using HaloRows = std::vector<std::vector<kernels::RowPair>>;
  // Calls use(strip, steps back, first column of that row in a message, columns of that row in the
  // halos), in the order of a message.
  template <typename Use>
  void for_each_halo_row(std::span<const nn::Strip> strips, Use use) const;
  void find_borders();
  void find_halos();
  // Moves the messages from one side of all borders to the other.
  void exchange(const Side& from, const Side& to, std::string_view label);
  kernels::Matrix token_of_rows(const kernels::Matrix& tokens, int64_t token) const;

  std::unique_ptr<CpStates> states_;
  Side before_, behind_;  // where documents come in, and where they go on
  int64_t message_width_;
  HaloRows arriving_, leaving_;  // from messages to halos, and back
  kernels::Sequence sequence_;

  virtual void assign_keys() = 0;  // after parts_ changed
};

class CpGather final : public CpSequence {
 public:
  CpGather(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs,
           const nn::Types& types, Allocator& allocator);
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                            const kernels::AttentionGradients&) override;

 private:
  void assign_keys() override;
  // Keys and values of all ranks, rank by rank; those of turn t stand in number t % 2.
  struct Gathered {
    OwnedTensor k, v;
    comm::Work keys_come, values_come;  // posted by post_keys
    void wait() { keys_come.wait(), values_come.wait(); }
  };
  Gathered& gathered(const nn::Pass& pass) { return gathered_[size_t(pass.turn) % 2]; }
  std::array<Gathered, 2> gathered_;
  OwnedTensor dk_, dv_;                   // gradients of all ranks' keys and values
  comm::Work keys_leave_, values_leave_;  // the sums of gradients, posted by attend_backward
  std::vector<Segment> keys_;             // their segments
};

class CpRing final : public CpSequence {
 public:
  CpRing(comm::Group& ranks, const CpSplit& split, const nn::ExchangeNeeds& needs,
         const nn::Types& types, Allocator& allocator);
  void post_keys(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend(const kernels::Context&, const nn::Pass&, const kernels::Attention&) override;
  void attend_backward(const kernels::Context&, const nn::Pass&, const kernels::Attention&,
                       const kernels::AttentionGradients&) override;
  void finish_key_gradients(const kernels::Context&, const nn::Pass&,
                            const kernels::AttentionGradients&) override;

 private:
  struct Pair {  // k and v, or their gradients
    Tensor k, v;
  };
  struct Passing {  // the messages of a Pair, kept while it is under way
    comm::Transfer sends[2], receives[2];
  };
  void assign_keys() override;
  int part_at(int step) const;
  std::span<const Segment> part(int step) const;
  bool sees(int part, int64_t window) const;
  // Sends `from` to the next rank and fills `to` with what the one before sends.
  comm::Work transfer_at(int step, const Pair& here);
  comm::Work pass_on(Passing& passing, const Pair& from, const Pair& to, std::string_view label);

  static void add(const kernels::Context& ctx, const Pair& from, const Pair& to);

  OwnedTensor memory_[2], sum_memory_[2];
  Pair under_way_[2], sums_[2];
  Passing passing_keys_, passing_gradients_;
  comm::Work first_;              // the first transfer of keys, posted by post_keys
  comm::Work last_sum_;           // the last transfer of gradients, posted by attend_backward
  std::vector<int64_t> nearest_;  // by part: tokens from the nearest query back to its nearest key
};

std::unique_ptr<CpSequence> make_cp_sequence(const CpKinds& kinds, comm::Group& ranks,
                                             const CpSplit& split, const nn::ExchangeNeeds& needs,
                                             const nn::Types& types, Allocator& allocator);

}  // namespace ashlar::parallel
