// How it works.  counts[s][e] is the first row of expert e among the rows of source s, which are
// sorted by expert.  From these every rank knows the destination of every row of a layer:
//
//   rows for rank p      expert 0 of p: source 0, source 1, ...; expert 1 of p: source 0, ...
//   round r              the r-th window of them; window: the longest list / number of rounds
//
// A message is one run: the rows of one source and one expert that are in the window.  A run is
// sent from its place and arrives where the expert reads it, so nothing needs to be sorted.
//
//   post_rows        sends runs of `rows`, receives runs into `rows_here`
//   receive_rows     waits, and writes the first row of each expert
//   post_results     sends runs of `results_here`, receives runs into `results`
//   receive_results  waits
#include "ashlar/parallel/ep.h"

#include <algorithm>

#include "ashlar/kernels/copy.h"
#include "ashlar/parallel/host_tensor.h"

namespace ashlar::parallel {

using kernels::Context;
using kernels::Matrix;
using nn::ExpertRound;

namespace {

// Rows of a matrix without gaps between rows.
Tensor rows_of(const Context& ctx, const Matrix& all, int64_t begin, int64_t rows) {
  ASHLAR_ASSERT(all.stride == all.cols);
  const Tensor whole{all.data, all.dtype, ctx.device, {all.rows, all.cols}};
  return whole.slice(begin, begin + rows);
}

}  // namespace

EpExchange::EpExchange(comm::Group& ep, comm::Group& tp, int64_t num_experts, int64_t rows_here)
    : ep_(ep),
      tp_(tp),
      sums_(tp),
      num_experts_(num_experts),
      experts_here_(num_experts / ep.size()),
      rows_here_(rows_here),
      row_of_expert_(size_t(experts_here_) + 1) {
  // A window cuts at most one run for each rank that it is sent to or comes from.
  const auto most = size_t(num_experts + ep.size());
  for (auto& rooms : messages_)
    for (auto& ways : rooms)
      for (Messages& messages : ways) messages.sends.reserve(most), messages.receives.reserve(most);
}

int64_t EpExchange::row_at(const ExpertRound& round, int source, int64_t expert) const {
  return round.counts[size_t(source * (num_experts_ + 1) + expert)];
}

int64_t EpExchange::rows_for(const ExpertRound& round, int rank) const {
  int64_t rows = 0;
  for (int source = 0; source < ep_.size(); ++source)
    rows += row_at(round, source, (rank + 1) * experts_here_) -
            row_at(round, source, rank * experts_here_);
  return rows;
}

int64_t EpExchange::window(const ExpertRound& round) const {
  int64_t longest = 0;
  for (int rank = 0; rank < ep_.size(); ++rank) longest = std::max(longest, rows_for(round, rank));
  return std::max<int64_t>(1, (longest + round.total - 1) / round.total);
}

template <typename Use>
void EpExchange::for_each_run(const ExpertRound& round, int rank, Use use) const {
  const int64_t length = window(round), begin = round.number * length, end = begin + length;
  int64_t at = 0;  // position in the rows for the rank
  for (int64_t e = 0; e < experts_here_; ++e)
    for (int source = 0; source < ep_.size(); ++source) {
      const int64_t first = row_at(round, source, rank * experts_here_ + e),
                    rows = row_at(round, source, rank * experts_here_ + e + 1) - first;
      const int64_t from = std::max(at, begin), to = std::min(at + rows, end);
      if (from < to) use(source, e, Run{from - begin, first + from - at, to - from});
      at += rows;
    }
}

EpExchange::Messages& EpExchange::under_way(const ExpertRound& round, bool results) {
  return messages_[size_t(round.kind)][size_t(round.room)][results ? 1 : 0];
}

int EpExchange::count(const Context& ctx, const kernels::RoutePlan& plan,
                      std::span<int32_t> counts) {
  const int64_t classes = num_experts_ + 1, own = ep_.rank() * classes;
  const Tensor all = host_tensor(ctx, counts);
  download(ctx, plan.row_of_expert_E1, counts.subspan(size_t(own), size_t(classes)));
  ep_.all_gather(all.slice(own, own + classes), all, "expert counts").wait();
  if (ctx.meta())  // an even load, since a dry run has no tokens
    for (int64_t i = 0; i < int64_t(counts.size()); ++i)
      counts[size_t(i)] = int32_t(plan.token_of_row_R.numel() * (i % classes) / num_experts_);
  const ExpertRound round{
      .kind = ExpertRound::Kind::kForward,
      .number = 0,
      .total = 1,
      .plan = plan,
      .counts = counts,
      .rows = Matrix::of(plan.token_of_row_R.view({plan.token_of_row_R.numel(), 1})),
      .results = {}};
  const int64_t longest = window(round);
  const int rounds = int(std::max<int64_t>(2, (longest + rows_here_ - 1) / rows_here_));
  rounds_.rounds += rounds;
  ++rounds_.mixtures;
  return rounds;
}

void EpExchange::post_rows(const Context& ctx, const ExpertRound& round) {
  Messages& m = under_way(round, false);
  m.sends.clear(), m.receives.clear();
  // Both sides of a pair list its runs by expert.
  for (int rank = 0; rank < ep_.size(); ++rank)
    for_each_run(round, rank, [&](int source, int64_t, const Run& run) {
      if (source == ep_.rank())
        m.sends.push_back({rank, rows_of(ctx, round.rows, run.there, run.rows)});
      if (rank == ep_.rank())
        m.receives.push_back({source, rows_of(ctx, round.rows_here, run.here, run.rows)});
    });
  constexpr const char* kLabels[] = {"expert rows", "expert gradients", "expert rows recompute"};
  m.work = ep_.send_receive(m.sends, m.receives, kLabels[size_t(round.kind)]);
}

nn::ExpertRows EpExchange::receive_rows(const Context& ctx, const ExpertRound& round) {
  under_way(round, false).work.wait();
  int64_t rows = 0;
  row_of_expert_.assign(row_of_expert_.size(), 0);
  for_each_run(round, ep_.rank(), [&](int, int64_t expert, const Run& run) {
    rows += run.rows;
    row_of_expert_[size_t(expert) + 1] = int32_t(rows);
  });
  // Experts without rows begin where the expert before them ends.
  for (size_t e = 1; e < row_of_expert_.size(); ++e)
    row_of_expert_[e] = std::max(row_of_expert_[e], row_of_expert_[e - 1]);
  upload(ctx, row_of_expert_, round.row_of_expert_here);
  // Kernels need at least one row.
  const auto first = [&](const Matrix& room) {
    return room.rows == 0 ? room : room.row_range(0, std::max<int64_t>(1, rows));
  };
  return {first(round.rows_here), first(round.results_here), round.row_of_expert_here};
}

void EpExchange::post_results(const Context& ctx, const ExpertRound& round) {
  Messages& m = under_way(round, true);
  m.sends.clear(), m.receives.clear();
  for (int rank = 0; rank < ep_.size(); ++rank)
    for_each_run(round, rank, [&](int source, int64_t, const Run& run) {
      if (rank == ep_.rank())
        m.sends.push_back({source, rows_of(ctx, round.results_here, run.here, run.rows)});
      if (source == ep_.rank())
        m.receives.push_back({rank, rows_of(ctx, round.results, run.there, run.rows)});
    });
  constexpr const char* kLabels[] = {"expert results", "expert input gradients"};
  m.work = ep_.send_receive(m.sends, m.receives, kLabels[size_t(round.kind)]);
}

void EpExchange::receive_results(const Context&, const ExpertRound& round) {
  under_way(round, true).work.wait();
}

}  // namespace ashlar::parallel
