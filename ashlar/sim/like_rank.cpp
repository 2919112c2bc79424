#include "ashlar/sim/like_rank.h"

#include <algorithm>

#include "ashlar/core/error.h"

namespace ashlar::sim {
namespace {

using machine::CollectiveOp;

int position_of(std::span<const int> ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  ASHLAR_ASSERT(found != ranks.end());
  return int(found - ranks.begin());
}

// Tickets of own operations, behind all of a trace.
constexpr int64_t kOwnTickets = int64_t{1} << 60;

}  // namespace

LikeRank::LikeRank(ProgramBuilder& builder, int rank, int like, const Trace& trace,
                   const Trace& own, const TraceGroup& own_group)
    : builder_(builder),
      rank_(rank),
      like_(like),
      trace_(trace),
      groups_(trace.groups().size()),
      own_(own),
      stands_for_(own_group),
      recorded_([&] {
        for (const auto& lane : builder.programs().ranks[size_t(like)].lanes)
          builder.lane(rank, lane.name);
        return RecordedRank(builder, rank, own);
      }()) {}

LikeRank::Moved LikeRank::moved(std::string_view name, std::span<const int> ranks) const {
  Moved group{.like_member = position_of(ranks, like_), .ranks = {ranks.begin(), ranks.end()}};
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end())
    for (int& rank : group.ranks) rank += rank_ - like_;
  group.group = builder_.group(name, group.ranks);
  group.member = position_of(group.ranks, rank_);
  return group;
}

void LikeRank::repeat(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const TraceEvent& event = trace_.events()[i];
    const ProgramEvent of_like = builder_.programs().ranks[size_t(like_)].events[i];
    if (event.kind == TraceEvent::Kind::kKernel)
      builder_.repeat_kernel(rank_, of_like);
    else if (event.kind == TraceEvent::Kind::kPost)
      post(event, of_like);
    else
      builder_.wait_at(rank_, of_like.lane, event.ticket, of_like.place);
  }
}

void LikeRank::post(const TraceEvent& event, const ProgramEvent& of_like) {
  Moved& group = groups_[size_t(event.group)];
  if (group.group < 0) {
    const TraceGroup& of_trace = trace_.group(event.group);
    group = moved(of_trace.name, of_trace.world_ranks);
  }
  const RankProgram& like = builder_.programs().ranks[size_t(like_)];
  RankOperation operation = like.operations[size_t(of_like.value)];
  std::vector<TraceMessage> messages(
      like.messages.begin() + operation.first_message,
      like.messages.begin() + operation.first_message + operation.num_messages);
  const auto& of_group = trace_.group(event.group).world_ranks;
  for (TraceMessage& message : messages)
    message.rank = group.ranks[size_t(position_of(of_group, message.rank))];
  operation.group = group.group;
  operation.member = group.member;
  set_bytes(operation, event, group);
  builder_.post_as_member(rank_, operation, event.ticket, messages, of_like.place);
}

// Bytes of this rank's chunk where chunks are uneven (comm/collectives.cpp): an operation sums a
// chunk of all ranks, or gathers the chunks of all, or both.
void LikeRank::set_bytes(RankOperation& operation, const TraceEvent& event,
                         const Moved& group) const {
  const int64_t n = int64_t(group.ranks.size());
  if (n == 1 || event.lane < 0) return;
  if (operation.op == CollectiveOp::kAllReduce) {
    const int64_t width = size_of(operation.dtype), numel = operation.bytes / width;
    const auto chunk = [&](int64_t member) {
      return (numel * (member + 1) / n - numel * member / n) * width;
    };
    const int64_t more = (n - 2) * (chunk(group.member) - chunk(group.like_member));
    operation.sent_bytes += more;
    operation.received_bytes += more;
    return;
  }
  const std::span<const TraceMessage> chunks = trace_.messages(event);
  if (chunks.size() != group.ranks.size() || operation.op == CollectiveOp::kAllToAll) return;
  const int64_t more = chunks[size_t(group.member)].bytes - chunks[size_t(group.like_member)].bytes;
  const bool sums = operation.op == CollectiveOp::kReduceScatter;
  operation.sent_bytes += sums ? -more : (n - 1) * more;
  operation.received_bytes += sums ? (n - 1) * more : -more;
}

void LikeRank::add_own(size_t begin, size_t end, const TracePlace& place) {
  if (begin == end) return;
  const ProgramPlace here{builder_.text(trace_.phase(place)), place.block, place.micro_batch,
                          place.branch};
  const int at = builder_.place(here);
  for (size_t i = begin; i < end; ++i) {
    const TraceEvent& event = own_.events()[i];
    if (event.kind == TraceEvent::Kind::kKernel) {
      builder_.kernel(rank_, recorded_.work_of(event), here);
    } else if (event.kind == TraceEvent::Kind::kWait) {
      builder_.wait_at(rank_, recorded_.lane_of(event), kOwnTickets + event.ticket, at);
    } else {
      if (!own_group_) own_group_ = moved(stands_for_.name, stands_for_.world_ranks);
      RankOperation operation = recorded_.operation_of(event, own_group_->group);
      operation.member = own_group_->member;
      std::vector<TraceMessage> messages(own_.messages(event).begin(), own_.messages(event).end());
      for (TraceMessage& message : messages) message.rank = own_group_->ranks[size_t(message.rank)];
      builder_.post_as_member(rank_, operation, kOwnTickets + event.ticket, messages, at);
    }
  }
}

}  // namespace ashlar::sim
