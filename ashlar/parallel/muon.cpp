// How it works.  Every rank goes through the rounds in this order and skips the matrices and
// operations in which it has no part.
//
//            waits for             works on            then posts
//   start                                              gather 0, gather 1
//   finish                         whole matrices
//            gather 0              matrix of round 0   scatter 0, gather 2
//            gather 1              matrix of round 1   scatter 1, gather 3
//            scatter 0, gather 2   matrix of round 2   scatter 2, gather 4
//
//   gather   moves other ranks' pieces from their gradients into this rank's buffer of the round;
//            its own pieces are copied there when the gather has ended
//   scatter  in owner mode, moves other ranks' results from the buffer into their gradients; own
//            results are copied back, which is all that replicate mode does
//
// Rounds r and r + 2 share a buffer.  Gather r + 2 is posted while scatter r still reads that
// buffer, and yet cannot overwrite it too early, because a lane runs its operations in order.
#include "ashlar/parallel/muon.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/kernels/newton_schulz.h"

namespace ashlar::parallel {
namespace {

using kernels::Context;

std::vector<Tensor> flattened(std::vector<Tensor> tensors) {
  for (Tensor& tensor : tensors) tensor = tensor.view({tensor.numel()});
  return tensors;
}

}  // namespace

DistributedMatrices::DistributedMatrices(Allocator& allocator, comm::Group& group, MuonPlan plan,
                                         std::vector<Tensor> gradients, DType compute,
                                         int num_steps)
    : group_(group),
      plan_(std::move(plan)),
      gradients_(flattened(std::move(gradients))),
      compute_(compute),
      num_steps_(num_steps) {
  ASHLAR_ASSERT(plan_.rank == group_.rank());
  std::vector<Tensor> stacks_GMN;
  for (const MuonStack& stack : plan_.stacks) {
    const MatrixShape& matrix = stack.matrix;
    stacks_GMN.push_back(gradients_[size_t(stack.holding)]
                             .slice(stack.begin, stack.begin + stack.num_matrices * matrix.numel())
                             .view({stack.num_matrices, matrix.rows, matrix.cols}));
  }
  stacks_GMN_ = optim::by_shape(stacks_GMN);
  if (plan_.matrices.empty()) return;
  rounds_.resize(size_t(plan_.matrices.back().round) + 1);
  for (const MuonMatrix& m : plan_.matrices)
    if (m.is_worker(plan_.rank)) rounds_[size_t(m.round)].mine = &m;
  take_buffers(allocator);
  for (const MuonMatrix& m : plan_.matrices) list_transfers(m, rounds_[size_t(m.round)]);
}

void DistributedMatrices::take_buffers(Allocator& allocator) {
  int64_t largest[2] = {0, 0};
  for (size_t r = 0; r < rounds_.size(); ++r)
    if (const MuonMatrix* mine = rounds_[r].mine)
      largest[r % 2] = std::max(largest[r % 2], mine->matrix.numel());
  for (int parity = 0; parity < 2; ++parity)
    if (largest[parity] > 0)
      buffers_[parity] =
          make_tensor(allocator, gradients_[0].dtype, {largest[parity]}, Tag::kCommunication);
  for (size_t r = 0; r < rounds_.size(); ++r)
    if (const MuonMatrix* mine = rounds_[r].mine)
      rounds_[r].gathered = buffers_[r % 2].tensor.slice(0, mine->matrix.numel());
}

Tensor DistributedMatrices::own(const MuonSegment& segment) const {
  return gradients_[size_t(segment.holding)].slice(segment.begin, segment.begin + segment.length);
}

// Both sides of a pair list matrices, and segments of the sender, in the same order: the k-th send
// to a rank meets its k-th receive from here.
void DistributedMatrices::list_transfers(const MuonMatrix& m, Round& round) {
  const int me = plan_.rank;
  const bool works = m.is_worker(me);
  int other = -1;  // the last holder visited
  for (const MuonSegment& segment : m.segments) {
    const bool is_own = segment.rank == me;
    if (is_own && !works) {
      round.gather.sends.push_back({m.owner, own(segment)});
      round.scatter.receives.push_back({m.owner, own(segment)});
    }
    if (is_own || !works) continue;
    const Tensor part = round.gathered.slice(segment.at, segment.at + segment.length);
    round.gather.receives.push_back({segment.rank, part});
    if (m.owner == me) round.scatter.sends.push_back({segment.rank, part});
    if (m.owner >= 0 || segment.rank == other) continue;
    other = segment.rank;  // replicate mode: once for each other holder
    for (const MuonSegment& mine : m.segments)
      if (mine.rank == me) round.gather.sends.push_back({other, own(mine)});
  }
}

void DistributedMatrices::post(Exchange& exchange, std::string_view label) {
  if (exchange.sends.empty() && exchange.receives.empty()) return;
  exchange.work = group_.send_receive(exchange.sends, exchange.receives, label);
}

void DistributedMatrices::start(const Context&) {
  for (size_t r = 0; r < std::min<size_t>(rounds_.size(), 2); ++r)
    post(rounds_[r].gather, "muon gather");
}

void DistributedMatrices::finish(const Context& ctx) {
  for (const std::vector<Tensor>& group : stacks_GMN_)
    kernels::orthogonalize(ctx, compute_, std::span(group), num_steps_);
  for (size_t r = 0; r < rounds_.size(); ++r) {
    Round& round = rounds_[r];
    if (round.mine) {
      // The scatter reads the buffer that work_on fills.  Waiting for the gather is not enough: a
      // matrix of one holder has none.
      if (r >= 2) rounds_[r - 2].scatter.work.wait();
      round.gather.work.wait();
      work_on(ctx, round);
    }
    // Every rank posts in this order; the scatter empties the buffer that the gather fills.
    post(round.scatter, "muon scatter");
    if (r + 2 < rounds_.size()) post(rounds_[r + 2].gather, "muon gather");
  }
  // Still open are the exchanges of rounds in which only other ranks work, and the last scatters.
  for (Round& round : rounds_) {
    round.gather.work.wait();
    round.scatter.work.wait();
  }
}

void DistributedMatrices::work_on(const Context& ctx, const Round& round) const {
  const MuonMatrix& m = *round.mine;
  const Tensor& gathered = round.gathered;
  for (const MuonSegment& segment : m.segments)
    if (segment.rank == plan_.rank)
      copy(ctx, own(segment), gathered.slice(segment.at, segment.at + segment.length));
  if (m.packed) put_in_order(ctx, round, true);
  kernels::orthogonalize(ctx, compute_, gathered.view({1, m.matrix.rows, m.matrix.cols}),
                         num_steps_);
  if (m.packed) put_in_order(ctx, round, false);
  for (const MuonSegment& segment : m.segments)
    if (segment.rank == plan_.rank)
      copy(ctx, gathered.slice(segment.at, segment.at + segment.length), own(segment));
}

void DistributedMatrices::put_in_order(const Context& ctx, const Round& round, bool by_rows) const {
  const MuonMatrix& m = *round.mine;
  const Tensor& gathered = round.gathered;
  const Arena::Scope scope(*ctx.workspace);
  const Tensor ordered = ctx.workspace->take(gathered.dtype, gathered.shape);
  for (const MuonSegment& segment : m.segments) {
    const kernels::BoxRange range{m.shape, segment.box, segment.box_begin, segment.length,
                                  m.index * m.matrix.numel()};
    const auto packed = [&](const Tensor& all) {
      return all.slice(segment.at, segment.at + segment.length);
    };
    by_rows ? copy_to_runs(ctx, range, packed(gathered), ordered)
            : copy_from_runs(ctx, range, gathered, packed(ordered));
  }
  copy(ctx, ordered, gathered);
}

}  // namespace ashlar::parallel
