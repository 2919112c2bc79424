// Context parallelism: the ranks of a group hold stretches of every sequence (cp_split.h).  Ranks
// exchange, forward and backward:
//
//   halos   the last rows of every stretch that a mixer reads before a token (cp_halos.h)
//   keys    keys and values, gathered or in a ring (cp_keys.h), or all tokens of some heads
//           (cp_heads.h)
//   states  of linear mixers, each brought to the chunks that it enters (cp_states.h)
//   rows    a router's counts of a row, added up over the ranks that hold its tokens
//
// CpSequence composes the four for a model and passes each micro-batch to them.
//
// Source   docs/parallel/cp.md: who holds what, and bytes and launches as closed formulas.
// Memory   buffers are taken once (Tag::kCommunication); scratch from ctx.workspace, the same for
//          all documents.
// Limits   every segment of the whole rows starts its document and lies in one row.  One
//          micro-batch at a time: `assign` replaces segments, halos and the ranges that keys can be
//          seen from.  It must be called again before forward or backward of a micro-batch if
//          another one was assigned since.
// Errors   kConfig if the rows cannot be cut evenly (CpSplit::check); those of comm::Group.
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

// The ways in which keys and states are exchanged.
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
  // weights: those of this rank; their mixers have the same needs in all blocks.
  CpSequence(const kernels::Context&, const CpKinds& kinds, comm::Group& ranks,
             const CpSplit& split, const nn::ModelWeights& weights, const nn::Types& types,
             Allocator& allocator);
  // Sets the next micro-batch: the documents of the whole rows, the same on every rank.  A dry run
  // gives one document per row, the most expensive list.  Allocates nothing.
  void assign(std::span<const Segment> whole_rows);
  // This rank's tokens of the micro-batch, with which forward and backward are called.
  const kernels::Sequence& sequence() const { return sequence_; }
  nn::TokenExchanges exchanges();
  // Waits for the states that were passed on.
  void finish_sends();
  // Null if no mixer has states.
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
