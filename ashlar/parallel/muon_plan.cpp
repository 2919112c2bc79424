// How it works.  Every rank goes through the holdings of all ranks in one order, so all ranks agree
// without a message.  The constructor does what concerns all ranks, `of` the rest for one.
//
//   find_shares   lists every rank's holdings and cuts them where matrices end.  A stretch that is
//                 a whole matrix counts as work of its rank.  Every other stretch is a Share.
//   assign        takes the shares of one matrix of one cover, which a sort has brought together,
//                 and decides its holders, its owner if it has one, and its round.  Owner and round
//                 depend on work_ and Rounds, which count all earlier assignments.
//   of            lists the rank's holdings again: whole matrices join stacks, other stretches are
//                 segments of split matrices.  The holders of those on which the rank works are
//                 asked for their segments once more.  Shares are too many to hold their places.
//   place_segments  gives each segment its place in the gathered matrix.
#include "ashlar/parallel/muon_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "ashlar/tensor/box_order.h"

namespace ashlar::parallel {
namespace {

constexpr int kMaxReplicated = 3;  // the most holders that all work on a matrix in mode auto

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

int64_t work_of(const MatrixShape& matrix) {
  return matrix.numel() * std::min(matrix.rows, matrix.cols);
}

// stretch is a whole matrix of holding number `holding`.
void add_whole(int64_t holding, const MatrixShape& matrix, const BoxStretch& stretch,
               std::vector<MuonStack>& stacks) {
  if (!stacks.empty()) {
    MuonStack& last = stacks.back();
    const int64_t end = last.begin + last.num_matrices * stretch.length;
    if (last.holding == holding && end == stretch.begin) {
      ++last.num_matrices;
      return;
    }
  }
  stacks.push_back({holding, stretch.begin, 1, matrix});
}

MuonSegment segment_of(int rank, int64_t holding, const BoxStretch& stretch) {
  return {rank, holding, stretch.begin, stretch.length, *stretch.box, stretch.box_begin};
}

}  // namespace

// A part of a matrix on one rank, less than all of it.  Small, because one list holds all ranks'.
struct MuonPlans::Share {
  int32_t matrix, cover, rank;
  int64_t length;
};

struct MuonPlans::Holder {
  int rank;
  int64_t length;
};

// The ranks that work in each round.  Holders that only send and receive are not counted.
class MuonPlans::Rounds {
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

MuonPlans::MuonPlans(std::vector<MuonTensor> tensors, HoldingsOf holdings, int num_ranks,
                     MuonMode mode)
    : tensors_(std::move(tensors)),
      holdings_(std::move(holdings)),
      num_ranks_(num_ranks),
      mode_(mode),
      first_number_{0},
      work_(size_t(num_ranks)) {
  for (const MuonTensor& tensor : tensors_) {
    matrix_.push_back(matrix_shape(tensor.shape, tensor.num_matrices));
    first_number_.push_back(first_number_.back() + tensor.num_matrices);
  }
  ASHLAR_ASSERT(first_number_.back() <= INT32_MAX);  // see Share::matrix
  std::vector<Share> shares = find_shares();
  const auto key = [](const Share& share) { return std::tie(share.matrix, share.cover); };
  // Shares of one rank in one matrix may come in any order: assign adds them up.
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return std::tie(a.matrix, a.cover, a.rank) < std::tie(b.matrix, b.cover, b.rank);
  });
  Rounds rounds(num_ranks_);
  for (size_t begin = 0, end = 0; begin < shares.size(); begin = end) {
    while (end < shares.size() && key(shares[end]) == key(shares[begin])) ++end;
    assign(std::span(shares).subspan(begin, end - begin), rounds);
  }
}

std::vector<MuonPlans::Share> MuonPlans::find_shares() {
  std::vector<Share> shares;
  std::vector<Holding> list;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    list.clear();
    holdings_(rank, {}, list);
    for (const Holding& holding : list) {
      const int64_t tensor = holding.tensor;
      const MatrixShape& matrix = matrix_[size_t(tensor)];
      for_each_stretch(
          tensors_[size_t(tensor)].shape, matrix.numel(), holding,
          [&](int64_t index, const BoxStretch& stretch) {
            if (stretch.length < matrix.numel())
              shares.push_back({number(tensor, index), holding.cover, rank, stretch.length});
            else
              work_[size_t(rank)] += work_of(matrix);
          });
    }
  }
  return shares;
}

// Takes the shares of one matrix of one cover, ordered by rank.
void MuonPlans::assign(std::span<const Share> shares, Rounds& rounds) {
  std::vector<Holder> holders;
  int64_t length = 0;
  for (const Share& share : shares) {
    if (holders.empty() || holders.back().rank != share.rank) holders.push_back({share.rank, 0});
    holders.back().length += share.length;
    length += share.length;
  }
  Split split{.matrix = shares[0].matrix,
              .cover = shares[0].cover,
              .owner = -1,
              .round = 0,
              .first_holder = holders_.size(),
              .end_holder = holders_.size() + holders.size()};
  const MatrixShape matrix = matrix_of(split).matrix;
  ASHLAR_ASSERT(length == matrix.numel());  // a cover has every element once
  const bool owned = mode_ == MuonMode::kOwner ||
                     (mode_ == MuonMode::kAuto && int(holders.size()) > kMaxReplicated);
  for (const Holder& holder : holders) holders_.push_back(holder.rank);
  if (owned && holders.size() > 1) {
    holders = {choose_owner(holders)};
    split.owner = holders[0].rank;
  }
  split.round = rounds.take_first_free(holders);
  for (const Holder& worker : holders) work_[size_t(worker.rank)] += work_of(matrix);
  splits_.push_back(split);
}

MuonPlans::Holder MuonPlans::choose_owner(std::span<const Holder> holders) const {
  // a is worse if it has fewer elements, or as many and more work, or as much and a higher rank.
  const auto worse = [&](const Holder& a, const Holder& b) {
    return std::make_tuple(a.length, -work_[size_t(a.rank)], -a.rank) <
           std::make_tuple(b.length, -work_[size_t(b.rank)], -b.rank);
  };
  return *std::max_element(holders.begin(), holders.end(), worse);
}

MuonPlan MuonPlans::of(int rank) const {
  ASHLAR_ASSERT(0 <= rank && rank < num_ranks_);
  MuonPlan plan;
  plan.rank = rank;
  std::vector<Holding> list;
  holdings_(rank, {}, list);
  std::map<size_t, MuonMatrix> mine;  // by number of the split
  for (size_t h = 0; h < list.size(); ++h) {
    const Holding& holding = list[h];
    const MatrixShape& matrix = matrix_[size_t(holding.tensor)];
    for_each_stretch(tensors_[size_t(holding.tensor)].shape, matrix.numel(), holding,
                     [&](int64_t index, const BoxStretch& stretch) {
                       if (stretch.length == matrix.numel())
                         return add_whole(int64_t(h), matrix, stretch, plan.stacks);
                       const size_t split = split_of(number(holding.tensor, index), holding.cover);
                       const auto [found, added] = mine.try_emplace(split);
                       if (added) found->second = matrix_of(splits_[split]);
                       found->second.segments.push_back(segment_of(rank, int64_t(h), stretch));
                     });
  }
  for (auto& [split, m] : mine) {
    if (m.is_worker(rank)) {
      add_segments_of_others(splits_[split], rank, m);
      place_segments(m);
    }
    plan.matrices.push_back(std::move(m));
  }
  std::stable_sort(plan.matrices.begin(), plan.matrices.end(),
                   [](const MuonMatrix& a, const MuonMatrix& b) { return a.round < b.round; });
  return plan;
}

size_t MuonPlans::split_of(int32_t matrix, int cover) const {
  const auto found = std::lower_bound(
      splits_.begin(), splits_.end(), std::pair(matrix, cover),
      [](const Split& a, const auto& b) { return std::pair(a.matrix, int(a.cover)) < b; });
  ASHLAR_ASSERT(found != splits_.end() && found->matrix == matrix && found->cover == cover);
  return size_t(found - splits_.begin());
}

MuonMatrix MuonPlans::matrix_of(const Split& split) const {
  const int64_t next_tensor =
      std::upper_bound(first_number_.begin(), first_number_.end(), split.matrix) -
      first_number_.begin();
  MuonMatrix m;
  m.tensor = next_tensor - 1;
  m.index = split.matrix - first_number_[size_t(m.tensor)];
  m.shape = tensors_[size_t(m.tensor)].shape;
  m.matrix = matrix_[size_t(m.tensor)];
  m.cover = split.cover;
  m.num_holders = int(split.end_holder - split.first_holder);
  m.owner = split.owner;
  m.round = split.round;
  return m;
}

// m has the segments of `rank`.
void MuonPlans::add_segments_of_others(const Split& split, int rank, MuonMatrix& m) const {
  const std::vector<MuonSegment> own = std::exchange(m.segments, {});
  std::vector<Holding> list;
  for (size_t i = split.first_holder; i < split.end_holder; ++i) {
    const int holder = holders_[i];
    if (holder == rank) {
      m.segments.insert(m.segments.end(), own.begin(), own.end());
      continue;
    }
    list.clear();
    holdings_(holder, MatrixNumber{m.tensor, m.index}, list);
    for (const Holding& holding : list) {
      if (holding.cover != m.cover) continue;
      for_each_stretch(m.shape, m.matrix.numel(), holding,
                       [&](int64_t index, const BoxStretch& stretch) {
                         if (index == m.index)
                           m.segments.push_back(segment_of(holder, -1, stretch));
                       });
    }
  }
}

void MuonPlans::place_segments(MuonMatrix& m) const {
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

}  // namespace ashlar::parallel
