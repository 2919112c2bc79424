// Decides which rank orthogonalises which matrix when every rank keeps pieces of them: a pure
// function of the pieces that ranks keep, with the same result on every rank.
//
// A matrix whose elements are all in one stretch of one rank is whole and is never moved.  Any
// other matrix is split over k ranks (k = 1: one rank keeps it in several places):
//
//   replicate  (auto: k <= 3)  every holder receives all pieces, runs Newton-Schulz and keeps its
//              own
//   owner      (auto: k >= 4)  one holder receives all pieces, runs it once and sends the results
//              back: the holder of most elements; among equals the one with the least work so far;
//              among those the lowest rank
//
// Rounds   a rank works on at most one split matrix in a round.  Matrices, in the order of tensor,
//          number and cover, take the first round in which all ranks that work on them are free.
// Work     rows cols min(rows, cols) of each matrix; whole matrices count first.
// Source   arXiv 2511.17127 exchanges the two edge matrices of a contiguous shard between
//          neighbours: replicate with k = 2.  The general form is this project's.
// Cost     time and temporary memory in proportion to the pieces of split matrices on all ranks,
//          once for all plans; MuonPlans keeps 4 bytes a piece.  A plan has only the matrices in
//          which its rank takes part.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/spec/recipe.h"
#include "ashlar/tensor/logical.h"

namespace ashlar::parallel {

// A logical tensor of num_matrices matrices, one after another.
struct MuonTensor {
  Shape shape;
  int64_t num_matrices = 1;
};

// Elements [begin, end) of boxes laid end to end, as in Parameter.  All ranks' holdings of a tensor
// with one cover number are together the whole tensor exactly once; holdings of different covers
// (copies) never communicate.
struct Holding {
  int64_t tensor = 0;
  int cover = 0;
  std::span<const Box> boxes;  // must stay valid as long as the MuonPlans
  int64_t begin = 0, end = 0;
};
struct MatrixNumber {
  int64_t tensor = 0, index = 0;
};
// Appends the holdings of `rank` in their order in its memory: all, or those of one tensor, of
// which it may leave out any that hold nothing of the one matrix.
using HoldingsOf = std::function<void(int rank, const std::optional<MatrixNumber>& only,
                                      std::vector<Holding>& list)>;

// Whole matrices side by side in one holding of this rank.
struct MuonStack {
  int64_t holding = 0;  // its number in the rank's list
  int64_t begin = 0;    // element of the holding
  int64_t num_matrices = 0;
  MatrixShape matrix{};
};

// Elements of one rank that are one stretch of its memory, inside one matrix.
struct MuonSegment {
  int rank = 0;
  int64_t holding = 0;            // its number in the rank's list; -1: another rank's
  int64_t begin = 0, length = 0;  // elements [begin, begin + length) of the holding
  Box box;                        // elements [box_begin, box_begin + length) of it
  int64_t box_begin = 0;
  int64_t at = 0;  // its place in the gathered matrix; see MuonMatrix::packed
};

// A split matrix that this rank takes part in.
struct MuonMatrix {
  int64_t tensor = 0, index = 0;
  Shape shape;  // the tensor's
  MatrixShape matrix{};
  int cover = 0;
  int num_holders = 0;  // k
  int owner = -1;       // -1: every holder works on it
  int round = 0;
  // The segments of all holders if this rank works on the matrix, else this rank's; by rank, then
  // in the rank's order.
  std::vector<MuonSegment> segments;
  // False: every segment is a run of the matrix and is gathered into its place.  True: some are not
  // (columns), so the matrix is gathered segment after segment and then put in order.
  bool packed = false;
  bool is_worker(int rank) const { return owner < 0 || owner == rank; }
};

struct MuonPlan {
  int rank = 0;
  std::vector<MuonStack> stacks;
  std::vector<MuonMatrix> matrices;  // by round, tensor, index, cover
};

// The plans of all ranks.
class MuonPlans {
 public:
  MuonPlans(std::vector<MuonTensor> tensors, HoldingsOf holdings, int num_ranks, MuonMode mode);
  // From any thread, if the holdings may be asked for from any.
  MuonPlan of(int rank) const;

 private:
  struct Share;
  struct Holder;
  class Rounds;
  // A split matrix of one cover.
  struct Split {
    int32_t matrix, cover;  // matrices are numbered over all tensors
    int32_t owner, round;
    size_t first_holder, end_holder;  // in holders_
  };
  std::vector<Share> find_shares();
  void assign(std::span<const Share> shares, Rounds& rounds);
  Holder choose_owner(std::span<const Holder> holders) const;
  size_t split_of(int32_t matrix, int cover) const;
  MuonMatrix matrix_of(const Split& split) const;
  void add_segments_of_others(const Split& split, int rank, MuonMatrix& m) const;
  void place_segments(MuonMatrix& m) const;
  int32_t number(int64_t tensor, int64_t index) const {
    return int32_t(first_number_[size_t(tensor)] + index);
  }

  const std::vector<MuonTensor> tensors_;
  const HoldingsOf holdings_;
  const int num_ranks_;
  const MuonMode mode_;
  std::vector<MatrixShape> matrix_;    // by tensor
  std::vector<int64_t> first_number_;  // by tensor; then the number of all matrices
  std::vector<int64_t> work_;          // by rank
  std::vector<Split> splits_;          // by matrix, cover
  std::vector<int32_t> holders_;       // of all splits: their ranks, ascending
};

}  // namespace ashlar::parallel
