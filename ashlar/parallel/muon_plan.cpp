// How it works.  Every rank goes through the holdings of all ranks in one order and keeps the
// matrices in which it takes part, so all ranks agree without a message.
//
//   find_shares     lists every rank's holdings and cuts them where matrices end.  A stretch that
//                   is a whole matrix counts as work of its rank and, on this rank, joins a stack
//                   of the plan.  Every other stretch is a Share.
//   assign          takes the shares of one matrix of one cover, which a sort has brought together,
//                   and decides its holders, its owner if it has one, and its round.  Owner and
//                   round depend on work_ and Rounds, which count all earlier assignments, of every
//                   rank.  The matrix enters the plan if this rank holds a part of it.
//   find_segments   lists holdings again, but only of the ranks in needed_: this rank, and those
//                   whose elements are sent here.  Shares are too many to hold their places.
//   place_segments  gives each segment its place in the gathered matrix.
#include "ashlar/parallel/muon_plan.h"

#include <algorithm>
#include <tuple>

#include "ashlar/tensor/box_order.h"

namespace ashlar::parallel {
namespace {

constexpr int kMaxReplicated = 3;  // the most holders that all work on a matrix in mode auto

// A part of a matrix on one rank, less than all of it.  Small, because one list holds all ranks'.
struct Share {
  int32_t matrix, cover, rank;  // matrices are numbered over all tensors
  int64_t length;
};

struct Holder {
  int rank;
  int64_t length;
};

// Elements of a holding that lie in one box and one matrix.
struct BoxStretch {
  const Box* box;
  int64_t box_begin, begin, length;  // elements [begin, begin + length) of the holding
};

// body(index of a matrix, stretch) for all stretches of a holding, in order.  Matrices are
// consecutive in the tensor and elements of a box ascend in it, so a box meets them one by one.
template <typename Body>
void for_each_stretch(const Shape& shape, int64_t matrix_numel, const Holding& holding, Body body) {
  int64_t before = 0;  // elements of earlier boxes
  for (const Box& box : holding.boxes) {
    const int64_t numel = box.length.numel();
    const int64_t end = std::min(holding.end - before, numel);
    for (int64_t at = std::max<int64_t>(holding.begin - before, 0); at < end;) {
      const int64_t index = index_in_tensor(shape, box, at) / matrix_numel;
      // `next` is the first element of the box that lies in a later matrix.
      const int64_t next = std::min(end, elements_before(shape, box, (index + 1) * matrix_numel));
      body(index, BoxStretch{&box, at, before + at - holding.begin, next - at});
      at = next;
    }
    before += numel;
  }
  ASHLAR_ASSERT(0 <= holding.begin && holding.begin <= holding.end && holding.end <= before);
}

// The ranks that work in each round.  Holders that only send and receive are not counted.
class Rounds {
 public:
  explicit Rounds(int num_ranks) : num_ranks_(size_t(num_ranks)) {}
  int take_first_free(std::span<const Holder> workers) {
    for (size_t round = 0;; ++round) {
      if (round == busy_.size()) busy_.emplace_back(num_ranks_);
      std::vector<bool>& busy = busy_[round];
      const auto is_busy = [&](const Holder& worker) { return bool(busy[size_t(worker.rank)]); };
      if (std::any_of(workers.begin(), workers.end(), is_busy)) continue;
      for (const Holder& worker : workers) busy[size_t(worker.rank)] = true;
      return int(round);
    }
  }

 private:
  size_t num_ranks_;
  std::vector<std::vector<bool>> busy_;
};

class Planner {
 public:
  Planner(std::span<const MuonTensor> tensors, HoldingsOf holdings, int rank, int num_ranks,
          MuonMode mode);
  MuonPlan run();

 private:
  void find_shares();
  void add_whole(int64_t holding, int64_t tensor, const BoxStretch& stretch);
  void assign(std::span<const Share> shares, Rounds& rounds);
  Holder choose_owner(std::span<const Holder> holders) const;
  void find_segments();
  void place_segments(MuonMatrix& matrix) const;
  int32_t number(int64_t tensor, int64_t index) const {
    return int32_t(first_number_[size_t(tensor)] + index);
  }
  int64_t work_of(const MatrixShape& matrix) const {
    return matrix.numel() * std::min(matrix.rows, matrix.cols);
  }

  const std::span<const MuonTensor> tensors_;
  const HoldingsOf holdings_;
  const int num_ranks_;
  const MuonMode mode_;
  std::vector<MatrixShape> matrix_;    // by tensor
  std::vector<int64_t> first_number_;  // by tensor; then the number of all matrices
  std::vector<int64_t> work_;          // by rank
  std::vector<Share> shares_;
  std::vector<bool> needed_;  // by rank: its segments are part of this rank's plan
  std::vector<Holding> list_;
  MuonPlan plan_;
};

Planner::Planner(std::span<const MuonTensor> tensors, HoldingsOf holdings, int rank, int num_ranks,
                 MuonMode mode)
    : tensors_(tensors),
      holdings_(holdings),
      num_ranks_(num_ranks),
      mode_(mode),
      first_number_{0},
      work_(size_t(num_ranks)),
      needed_(size_t(num_ranks)) {
  ASHLAR_ASSERT(0 <= rank && rank < num_ranks);
  plan_.rank = rank;
  for (const MuonTensor& tensor : tensors) {
    matrix_.push_back(matrix_shape(tensor.shape, tensor.num_matrices));
    first_number_.push_back(first_number_.back() + tensor.num_matrices);
  }
  ASHLAR_ASSERT(first_number_.back() <= INT32_MAX);  // see Share::matrix
}

MuonPlan Planner::run() {
  find_shares();
  const auto key = [](const Share& share) { return std::tie(share.matrix, share.cover); };
  // Shares of one rank in one matrix may come in any order: assign adds them up.
  std::sort(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) {
    return std::tie(a.matrix, a.cover, a.rank) < std::tie(b.matrix, b.cover, b.rank);
  });
  Rounds rounds(num_ranks_);
  for (size_t begin = 0, end = 0; begin < shares_.size(); begin = end) {
    while (end < shares_.size() && key(shares_[end]) == key(shares_[begin])) ++end;
    assign(std::span(shares_).subspan(begin, end - begin), rounds);
  }
  shares_ = {};
  find_segments();  // before the sort by round: it relies on the order by number
  std::stable_sort(plan_.matrices.begin(), plan_.matrices.end(),
                   [](const MuonMatrix& a, const MuonMatrix& b) { return a.round < b.round; });
  return std::move(plan_);
}

void Planner::find_shares() {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    list_.clear();
    holdings_(rank, list_);
    for (size_t h = 0; h < list_.size(); ++h) {
      const int64_t tensor = list_[h].tensor;
      const MatrixShape& matrix = matrix_[size_t(tensor)];
      for_each_stretch(
          tensors_[size_t(tensor)].shape, matrix.numel(), list_[h],
          [&](int64_t index, const BoxStretch& stretch) {
            if (stretch.length < matrix.numel()) {
              shares_.push_back({number(tensor, index), list_[h].cover, rank, stretch.length});
              return;
            }
            work_[size_t(rank)] += work_of(matrix);
            if (rank == plan_.rank) add_whole(int64_t(h), tensor, stretch);
          });
    }
  }
}

void Planner::add_whole(int64_t holding, int64_t tensor, const BoxStretch& stretch) {
  if (!plan_.stacks.empty()) {
    MuonStack& last = plan_.stacks.back();
    const int64_t end = last.begin + last.num_matrices * stretch.length;
    if (last.holding == holding && end == stretch.begin) {
      ++last.num_matrices;
      return;
    }
  }
  plan_.stacks.push_back({holding, stretch.begin, 1, matrix_[size_t(tensor)]});
}

// Takes the shares of one matrix of one cover, ordered by rank.
void Planner::assign(std::span<const Share> shares, Rounds& rounds) {
  const int64_t next_tensor =
      std::upper_bound(first_number_.begin(), first_number_.end(), shares[0].matrix) -
      first_number_.begin();
  MuonMatrix m;
  m.tensor = next_tensor - 1;
  m.index = shares[0].matrix - first_number_[size_t(m.tensor)];
  m.shape = tensors_[size_t(m.tensor)].shape;
  m.matrix = matrix_[size_t(m.tensor)];
  m.cover = shares[0].cover;
  std::vector<Holder> holders;
  int64_t length = 0;
  for (const Share& share : shares) {
    if (holders.empty() || holders.back().rank != share.rank) holders.push_back({share.rank, 0});
    holders.back().length += share.length;
    length += share.length;
  }
  ASHLAR_ASSERT(length == m.matrix.numel());  // a cover has every element once
  m.num_holders = int(holders.size());
  const bool owned =
      mode_ == MuonMode::kOwner || (mode_ == MuonMode::kAuto && m.num_holders > kMaxReplicated);
  std::vector<Holder> workers = holders;
  if (owned && m.num_holders > 1) {
    workers = {choose_owner(holders)};
    m.owner = workers[0].rank;
  }
  // This counts even if this rank holds nothing of the matrix: later owners and rounds depend on
  // it.
  m.round = rounds.take_first_free(workers);
  for (const Holder& worker : workers) work_[size_t(worker.rank)] += work_of(m.matrix);

  const auto is_here = [&](const Holder& holder) { return holder.rank == plan_.rank; };
  if (std::none_of(holders.begin(), holders.end(), is_here)) return;
  needed_[size_t(plan_.rank)] = true;
  if (m.is_worker(plan_.rank))
    for (const Holder& holder : holders) needed_[size_t(holder.rank)] = true;
  plan_.matrices.push_back(std::move(m));
}

Holder Planner::choose_owner(std::span<const Holder> holders) const {
  // a is worse if it has fewer elements, or as many and more work, or as much and a higher rank.
  const auto worse = [&](const Holder& a, const Holder& b) {
    return std::make_tuple(a.length, -work_[size_t(a.rank)], -a.rank) <
           std::make_tuple(b.length, -work_[size_t(b.rank)], -b.rank);
  };
  return *std::max_element(holders.begin(), holders.end(), worse);
}

// Asks the holders of this rank's matrices once more for their segments.
void Planner::find_segments() {
  // For each matrix: the first of its covers in plan_.matrices; -1: this rank has none of it.
  std::vector<int32_t> first(size_t(first_number_.back()), -1);
  for (size_t i = plan_.matrices.size(); i-- > 0;)
    first[size_t(number(plan_.matrices[i].tensor, plan_.matrices[i].index))] = int32_t(i);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (!needed_[size_t(rank)]) continue;
    list_.clear();
    holdings_(rank, list_);
    for (size_t h = 0; h < list_.size(); ++h) {
      const Holding& holding = list_[h];
      const auto add = [&](int64_t index, const BoxStretch& stretch) {
        const int32_t found = first[size_t(number(holding.tensor, index))];
        if (found < 0) return;
        for (size_t i = size_t(found); i < plan_.matrices.size(); ++i) {
          MuonMatrix& m = plan_.matrices[i];
          if (m.tensor != holding.tensor || m.index != index) return;
          if (m.cover != holding.cover) continue;
          if (rank != plan_.rank && !m.is_worker(plan_.rank)) continue;  // goes to the owner alone
          m.segments.push_back(
              {rank, int64_t(h), stretch.begin, stretch.length, *stretch.box, stretch.box_begin});
        }
      };
      for_each_stretch(tensors_[size_t(holding.tensor)].shape,
                       matrix_[size_t(holding.tensor)].numel(), holding, add);
    }
  }
  for (MuonMatrix& m : plan_.matrices)
    if (m.is_worker(plan_.rank)) place_segments(m);
}

void Planner::place_segments(MuonMatrix& m) const {
  for (MuonSegment& segment : m.segments) {
    const int64_t end = segment.box_begin + segment.length;
    const int64_t first = index_in_tensor(m.shape, segment.box, segment.box_begin);
    const int64_t last = index_in_tensor(m.shape, segment.box, end - 1);
    segment.at = first - m.index * m.matrix.numel();
    m.packed |= last + 1 - first != segment.length;  // other elements lie between: no run
  }
  if (!m.packed) return;
  int64_t at = 0;
  for (MuonSegment& segment : m.segments) {
    segment.at = at;
    at += segment.length;
  }
}

}  // namespace

MuonPlan plan_muon(std::span<const MuonTensor> tensors, HoldingsOf holdings, int rank,
                   int num_ranks, MuonMode mode) {
  return Planner(tensors, holdings, rank, num_ranks, mode).run();
}

}  // namespace ashlar::parallel
