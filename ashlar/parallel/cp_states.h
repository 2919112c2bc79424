// Linear attention over ranks that hold chunks of every sequence (cp_split.h): the ways to bring
// each chunk the state that enters it, and in backward the gradient of the state that leaves it.
//
//   CpGatherStates   LASP-2: one all_gather of the map of each chunk; every rank then walks through
//                    the chunks before its own, in order
//   CpChainStates    LASP-1: the state is sent from rank to rank; each sends it on after using it.
//                    As a scan (ZeCO's All-Scan) the chain is cut into groups of heads that follow
//                    each other, and is sent on at once
//   CpExclusiveScan  recursive doubling (cp_exclusive_scan.h)
//
// Without mask (nn/exchange.h, StateMaps), chunks also need states of the chunks behind them; only
// CpGatherStates supports this.
//
// Chunks are those of CpSplit: one per rank and row, or two with zigzag, numbered in the order of
// tokens.  If a document starts in a chunk, nothing of what enters the chunk leaves it.
//
// Source   LASP-2, arXiv:2502.07563; LASP, arXiv:2404.02882; ZeCO, arXiv:2507.01004.  Bytes and
//          launches as closed formulas: docs/parallel/states.md.
// Memory   C chunks here, W ranks, m elements of a chunk's states, g of its transitions, in the
//          wide type (Tag::kCommunication): gather W C (m + g), without mask W C 2 m, chain and
//          scan 2 C m; where decays are fixed, besides, their powers for every block and number of
//          chunks.  One state of every row from ctx.workspace.
// Numerics chunk after chunk in the order of tokens, whatever arrives first: the same bits on all
//          ranks, and for all but CpExclusiveScan.
// Errors   those of comm::Group.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/comm/channel.h"
#include "ashlar/comm/group.h"
#include "ashlar/nn/exchange.h"
#include "ashlar/parallel/cp_split.h"
#include "ashlar/spec/recipe.h"

namespace ashlar::parallel {

class CpStates : public nn::ChunkStates, public nn::StatePassing {
 public:
  using State = nn::ExchangeNeeds::StateShape;
  // Logarithms of fixed decays, [H] for each block; empty if the decay is 1.
  using LogDecays = std::vector<std::span<const double>>;
  static std::unique_ptr<CpStates> make(const kernels::Context&, StateExchange kind,
                                        comm::Group& ranks, const CpSplit& split,
                                        const State& state, const LogDecays& log_decays, DType wide,
                                        Allocator& allocator);

  // Sets the documents of the whole rows of the next micro-batch.  Allocates nothing.
  void assign(std::span<const Segment> whole_rows);
  // This rank's chunks, row by row, in the order of tokens.
  std::span<const kernels::StateChunk> chunks() const { return chunks_; }
  std::span<const kernels::StateChunk> chunks(const nn::Pass&) final { return chunks_; }
  Tensor states_here(const nn::Pass&) final { return {}; }

  virtual void finish_sends() {}  // waits for the states that were passed on

  // Groups used besides the group of the ranks.
  virtual std::vector<const comm::Group*> groups() const { return {}; }

 protected:
  CpStates(comm::Group& ranks, const CpSplit& split, const State& state);

  int64_t num_chunks() const { return split_.num_chunks(); }
  int64_t rows() const { return split_.num_rows; }
  int64_t here() const { return int64_t(chunks_.size()); }  // C
  bool is_mine(int64_t chunk) const { return split_.owner(chunk) == ranks_.rank(); }
  // The number of a row's chunk among the chunks of its rank.
  int64_t index_of(int64_t chunk, int64_t row) const;
  // The same among those of all ranks, rank by rank.
  int64_t number_of(int64_t chunk, int64_t row) const;

  // Advances the state of a row, [heads from first_head on, dk, dv], through a chunk: from the
  // state that enters to the one that leaves, or in backward the reverse.
  void advance(const kernels::Context&, const nn::StateMaps&, int64_t chunk, int64_t row,
               const Tensor& transition, const Tensor& made, const Tensor& state,
               int64_t first_head = 0);
  // The same for fixed transitions, through `num` chunks from `first` on.
  void advance_fixed(const kernels::Context&, const nn::StateMaps&, int64_t first, int64_t num,
                     int64_t row, const Tensor& made, const Tensor& state, int64_t first_head = 0);
  // The transition of a chunk here.
  Tensor transition_here(const nn::StateMaps&, int64_t chunk, int64_t row) const;

  // Number n of a tensor, without its first dim.
  static Tensor one_of(const Tensor& all, int64_t n) {
    return all.slice(n, n + 1).view(Shape(all.shape.dims().subspan(1)));
  }
  static std::string_view label_of(const nn::StateMaps& maps) {
    return maps.backward ? "state gradients" : "states";
  }

  comm::Group& ranks_;
  const CpSplit split_;
  const State state_;

 private:
  std::vector<kernels::StateChunk> chunks_;
  void take_fixed(const kernels::Context&, const LogDecays&, DType wide, Allocator& allocator);
  std::vector<char> starts_;  // by row and chunk: whether a document starts in it
  // Transitions of heads with a fixed decay, [blocks, chunks + 1, H]: number n is that of n chunks,
  // but number 0 that of chunks in which a document starts.
  OwnedTensor fixed_;
};

}  // namespace ashlar::parallel
