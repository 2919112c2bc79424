// Context parallelism: the ranks of a group hold stretches of every sequence
// (cp_split.h).  What crosses them, forward and backward:
//
//   halos   the last rows of every stretch that a mixer reads before a token (cp_halos.h)
//   keys    keys and values, gathered or in a ring (cp_keys.h), or all tokens of some heads
//           (cp_heads.h)
//   states  of linear mixers, each brought to the chunks that it enters (cp_states.h)
//   rows    what a router counts of a row is added up over the ranks that hold its tokens
//
// CpSequence composes the four for a model and gives them each micro-batch.
//
// Source   docs/parallel/cp.md: who holds what, and bytes and launches as closed formulas.
// Memory   buffers are taken once (Tag::kCommunication); scratch from ctx.workspace, the same for
//          all documents.
// Limits   every segment of the whole rows starts its document and lies in one row.  One
//          micro-batch at a time: segments, halos and what the keys of each rank can be seen by are
//          members that `assign` replaces, so that forward and backward of a micro-batch each need
//          it to be the one that was assigned last.
// Errors   kConfig where the rows cannot be cut evenly (CpSplit::check); those of comm::Group.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/nn/weights.h"
#include "ashlar/parallel/cp_halos.h"
#include "ashlar/parallel/cp_keys.h"
#include "ashlar/parallel/cp_split.h"
#include "ashlar/parallel/cp_states.h"

namespace ashlar::parallel {

// How keys, and states, reach the ranks.
struct CpKinds {
  CpExchange keys = CpExchange::kAllGather;
  StateExchange states = StateExchange::kAllGather;
};

class CpRowSums final : public nn::RowSums {
 public:
  explicit CpRowSums(comm::Group& ranks) : ranks_(ranks) {}
  void sum(const Tensor& of_rows) override;

 private:
  comm::Group& ranks_;
};

class CpSequence {
 public:
  // weights: with the heads that stand here; what their mixers need is alike in all blocks.
  CpSequence(const kernels::Context&, const CpKinds& kinds, comm::Group& ranks,
             const CpSplit& split, const nn::ModelWeights& weights, const nn::Types& types,
             Allocator& allocator);
  // The next micro-batch: documents of the whole rows, the same on every rank.  Not read from
  // tensors: on meta a dry run gives one document per row, which every other list costs at most.
  // Allocates nothing.
  void assign(std::span<const Segment> whole_rows);
  // This rank's tokens of it; what forward and backward are called with.
  const kernels::Sequence& sequence() const { return sequence_; }
  nn::TokenExchanges exchanges();
  // Waits for the states that were passed on.
  void finish_sends();
  // Null: no mixer has states.
  const CpStates* states() const { return states_.get(); }

 private:
  const CpSplit split_;
  const int rank_;
  CpParts parts_;
  kernels::Sequence sequence_;
  CpHalos halos_;
  std::unique_ptr<CpKeys> keys_;
  std::unique_ptr<CpStates> states_;
  CpRowSums rows_;
};

}  // namespace ashlar::parallel
