#include <fmt/format.h>

#include <utility>

#include "ashlar/core/error.h"
#include "ashlar/sim/replayer.h"

namespace ashlar::sim {

void Replayer::start_lane(int rank, int number) {
  Lane& lane = ranks_[size_t(rank)].lanes[size_t(number)];
  if (lane.busy || lane.posted == lane.ended || !problem_.empty()) return;
  lane.busy = true;
  lane.began_s = lane.met_s = now_s_;
  if (operation_of(rank, number).number >= 0)
    come(rank, number);
  else
    begin_messages(rank, number);
}

void Replayer::end_operation(int number, int lane_number) {
  Rank& rank = ranks_[size_t(number)];
  Lane& lane = rank.lanes[size_t(lane_number)];
  keep(number, {.kind = ReplaySpan::Kind::kOperation,
                .lane = int16_t(lane_number),
                .index = operation_index(number, lane_number),
                .begin_s = lane.began_s,
                .end_s = now_s_,
                .met_s = lane.met_s});
  lane.busy = false;
  ++lane.ended;
  if (lane.posted > lane.ended) ready_.push_back({Then::Kind::kStartLane, number, lane_number});
  if (rank.lane != lane_number) return;
  if ((rank.block == Block::kWait && rank.waits_for < lane.ended) || rank.block == Block::kPost)
    unblock(number);
}

// While a lane of the rank moves data, the kernels that it disturbs are slower.
void Replayer::set_moving(int number, int lane_number, int by) {
  Rank& rank = ranks_[size_t(number)];
  Lane& lane = rank.lanes[size_t(lane_number)];
  if (lane.moving == 0) lane.moving_since_s = now_s_;
  lane.moving += by;
  if (lane.moving == 0) lane.moved_s += now_s_ - lane.moving_since_s;
  if (lane.moving == 0 || (by > 0 && lane.moving == by)) {
    rank.num_moving += by > 0 ? 1 : -1;
    if (rank.kernel_set < 0 || rank.num_moving > 1 || (by < 0 && rank.num_moving > 0)) return;
    const double factor =
        costs_.contention(programs_.ranks[size_t(number)].events[size_t(rank.at)]);
    if (factor != 1) sets_.set_limit(rank.kernel_set, rank.num_moving > 0 ? 1 / factor : 1, now_s_);
  }
}

// --- collectives ---

int Replayer::new_meeting(int group, int64_t ordinal) {
  if (free_meetings_.empty()) {
    free_meetings_.push_back(int32_t(meetings_.size()));
    meetings_.emplace_back();
  }
  const int number = free_meetings_.back();
  free_meetings_.pop_back();
  Meeting& meeting = meetings_[size_t(number)];
  meeting = {};
  meeting.group = group;
  meeting.ordinal = ordinal;
  meeting.operations.assign(programs_.groups[size_t(group)].simulated.size(), -1);
  open_meetings_[size_t(group)][ordinal] = number;
  return number;
}

void Replayer::come(int rank, int lane) {
  const RankOperation& operation = operation_of(rank, lane);
  const int64_t ordinal = num_begun_[size_t(operation.group)][size_t(operation.member)]++;
  const auto& open = open_meetings_[size_t(operation.group)];
  const auto found = open.find(ordinal);
  const int number = found != open.end() ? found->second : new_meeting(operation.group, ordinal);
  Meeting& meeting = meetings_[size_t(number)];
  meeting.operations[size_t(operation.member)] = operation_index(rank, lane);
  if (size_t(++meeting.num_come) < meeting.operations.size()) return;
  open_meetings_[size_t(operation.group)].erase(ordinal);
  if (!agree(meeting)) return;
  const RankGroup& group = programs_.groups[size_t(meeting.group)];
  meeting.parts = costs_.parts(
      group, programs_.ranks[size_t(group.simulated[0])].operations[size_t(meeting.operations[0])]);
  for (size_t m = 0; m < group.simulated.size(); ++m) {
    const int member = group.simulated[m];
    const RankOperation& theirs =
        programs_.ranks[size_t(member)].operations[size_t(meeting.operations[m])];
    ranks_[size_t(member)].lanes[size_t(theirs.lane)].met_s = now_s_;
    set_moving(member, theirs.lane, 1);
  }
  begin_part(number);
}

// Whether all members call the same; sizes may differ where ranks say their own counts.
bool Replayer::agree(const Meeting& meeting) {
  const auto& ranks = programs_.groups[size_t(meeting.group)].simulated;
  const auto operation = [&](size_t m) -> const RankOperation& {
    return programs_.ranks[size_t(ranks[m])].operations[size_t(meeting.operations[m])];
  };
  const RankOperation& first = operation(0);
  for (size_t m = 1; m < ranks.size(); ++m) {
    const RankOperation& other = operation(m);
    const bool counted = first.op == machine::CollectiveOp::kAllToAll && first.num_messages > 0;
    if (other.op == first.op && other.label == first.label && other.dtype == first.dtype &&
        other.root == first.root && (counted || other.bytes == first.bytes))
      continue;
    problem_ = fmt::format("rank {} calls {} of {} bytes; rank {}: {} of {} bytes", ranks[0],
                           programs_.name_of(first), first.bytes, ranks[m],
                           programs_.name_of(other), other.bytes);
    return false;
  }
  return true;
}

void Replayer::begin_part(int number) {
  Meeting& meeting = meetings_[size_t(number)];
  if (meeting.part == meeting.parts.size()) return release(number);
  const double latency_s = meeting.parts[meeting.part].latency_s;
  if (latency_s > 0)
    plan(now_s_ + latency_s, {{Then::Kind::kLatency, number}});
  else
    start_part(number);
}

void Replayer::start_part(int number) {
  Meeting& meeting = meetings_[size_t(number)];
  const OperationPart& part = meeting.parts[meeting.part];
  const auto& ranks = programs_.groups[size_t(meeting.group)].simulated;
  const bool works = part.core_s > 0 || part.core_s_per_received > 0;
  meeting.open = 1 + int(works ? ranks.size() : 0);
  for (size_t m = 0; works && m < ranks.size(); ++m) {
    const int cores = costs_.lane_cores(ranks[m]);
    if (costs_.wake_busy_s() > 0 && cores >= 0 && sets_.full(cores))
      plan(now_s_ + costs_.wake_busy_s(), {{Then::Kind::kWoken, number, int32_t(m)}});
    else
      start_core(number, int(m));
  }
  if (part.work > 0)
    start_set(part.work, part.limit, part.links, {Then::Kind::kLinks, number});
  else
    end_part_of(number);
}

void Replayer::start_core(int number, int member) {
  const Meeting& meeting = meetings_[size_t(number)];
  const OperationPart& part = meeting.parts[meeting.part];
  const int rank = programs_.groups[size_t(meeting.group)].simulated[size_t(member)];
  const RankOperation& operation =
      programs_.ranks[size_t(rank)].operations[size_t(meeting.operations[size_t(member)])];
  const double work_s = part.core_s + part.core_s_per_received *
                                          costs_.received_scale(rank, operation) *
                                          double(operation.received_bytes);
  const ResourceUse use{costs_.lane_cores(rank), 1};
  start_set(work_s, 1, use.resource >= 0 ? std::span(&use, 1) : std::span<const ResourceUse>(),
            {Then::Kind::kCore, number, member});
}

// A rank leaves an operation of one part when its own lane has done its work.
void Replayer::end_member(int number, int member) {
  Meeting& meeting = meetings_[size_t(number)];
  const OperationPart& part = meeting.parts[meeting.part];
  if (meeting.parts.size() == 1 && part.work == 0) {
    const int rank = programs_.groups[size_t(meeting.group)].simulated[size_t(member)];
    int32_t& operation = meeting.operations[size_t(member)];
    const int lane = programs_.ranks[size_t(rank)].operations[size_t(operation)].lane;
    operation = -1;
    set_moving(rank, lane, -1);
    end_operation(rank, lane);
  }
  end_part_of(number);
}

void Replayer::end_part_of(int number) {
  Meeting& meeting = meetings_[size_t(number)];
  if (--meeting.open > 0) return;
  ++meeting.part;
  begin_part(number);
}

void Replayer::release(int number) {
  const Meeting& meeting = meetings_[size_t(number)];
  const auto& ranks = programs_.groups[size_t(meeting.group)].simulated;
  for (size_t m = 0; m < ranks.size(); ++m) {
    if (meeting.operations[m] < 0) continue;
    const int lane =
        programs_.ranks[size_t(ranks[m])].operations[size_t(meeting.operations[m])].lane;
    set_moving(ranks[m], lane, -1);
    end_operation(ranks[m], lane);
  }
  free_meetings_.push_back(number);
}

// --- messages ---

void Replayer::begin_messages(int rank, int lane_number) {
  const RankProgram& program = programs_.ranks[size_t(rank)];
  const RankOperation& operation = operation_of(rank, lane_number);
  Lane& lane = ranks_[size_t(rank)].lanes[size_t(lane_number)];
  lane.open_messages = operation.num_messages;
  if (operation.num_messages == 0) return end_operation(rank, lane_number);
  for (int32_t i = 0; i < operation.num_messages && problem_.empty(); ++i) {
    const TraceMessage& m = program.messages[size_t(operation.first_message + i)];
    const int from = m.sends ? rank : m.rank, to = m.sends ? m.rank : rank;
    const MessageEnd here{rank, int16_t(lane_number), m.bytes};
    if (!programs_.simulates(m.rank)) {
      const MessageEnd there{.bytes = m.bytes};
      start_message(from, to, m.sends ? here : there, m.sends ? there : here);
      continue;
    }
    meet(operation.group, from, to, here, m.sends);
  }
}

void Replayer::meet(int group, int from, int to, const MessageEnd& end, bool sends) {
  constexpr int kRankBits = 20;
  Channel& channel =
      channels_[(uint64_t(group) << kRankBits | uint64_t(from)) << kRankBits | uint64_t(to)];
  auto& waiting = channel.waiting;
  if (waiting.empty() || channel.are_sends == sends) {
    channel.are_sends = sends;
    return waiting.push_back(end);
  }
  const MessageEnd other = waiting.front();
  waiting.erase(waiting.begin());
  const MessageEnd &sent = sends ? end : other, &expected = sends ? other : end;
  if (sent.bytes != expected.bytes) {
    problem_ =
        fmt::format("rank {} sends {} bytes to rank {}, which expects {}: {}", from, sent.bytes, to,
                    expected.bytes, programs_.name_of(operation_of(sent.rank, sent.lane)));
    return;
  }
  start_message(from, to, sent, expected);
}

// An end without a rank is of one that is not simulated; it comes as soon as the other.
void Replayer::start_message(int from, int to, const MessageEnd& sender,
                             const MessageEnd& receiver) {
  if (free_messages_.empty()) {
    free_messages_.push_back(int32_t(messages_.size()));
    messages_.emplace_back();
  }
  const int number = free_messages_.back();
  free_messages_.pop_back();
  Message& message = messages_[size_t(number)];
  message.from = sender;
  message.to = receiver;
  message.cost = costs_.message(from, to, message.from.bytes);
  for (const MessageEnd& end : {message.from, message.to}) {
    if (end.rank < 0) continue;
    ranks_[size_t(end.rank)].lanes[size_t(end.lane)].met_s = now_s_;
    set_moving(end.rank, end.lane, 1);
  }
  if (message.cost.latency_s > 0)
    plan(now_s_ + message.cost.latency_s, {{Then::Kind::kMessage, number}});
  else
    move(number);
}

void Replayer::move(int number) {
  const Message& message = messages_[size_t(number)];
  const OperationPart& cost = message.cost;
  if (cost.work > 0)
    return start_set(cost.work, cost.limit, cost.links, {Then::Kind::kMessageDone, number});
  if (cost.core_s <= 0 || message.to.rank < 0) return end_message(number);
  Lane& lane = ranks_[size_t(message.to.rank)].lanes[size_t(message.to.lane)];
  lane.to_receive.push_back(number);
  if (lane.to_receive.size() == 1) receive(number);
}

// The receiver's lane takes the message.
void Replayer::receive(int number) {
  const Message& message = messages_[size_t(number)];
  const ResourceUse use{costs_.lane_cores(message.to.rank), 1};
  start_set(message.cost.core_s, 1,
            use.resource >= 0 ? std::span(&use, 1) : std::span<const ResourceUse>(),
            {Then::Kind::kMessageDone, number});
}

void Replayer::end_message(int number) {
  const MessageEnd from = messages_[size_t(number)].from, to = messages_[size_t(number)].to;
  free_messages_.push_back(number);
  if (to.rank >= 0) {
    auto& waiting = ranks_[size_t(to.rank)].lanes[size_t(to.lane)].to_receive;
    if (!waiting.empty() && waiting.front() == number) {
      waiting.pop_front();
      if (!waiting.empty()) ready_.push_back({Then::Kind::kMessageCore, waiting.front()});
    }
  }
  for (const MessageEnd& end : {from, to}) {
    if (end.rank < 0) continue;
    Lane& lane = ranks_[size_t(end.rank)].lanes[size_t(end.lane)];
    set_moving(end.rank, end.lane, -1);
    if (--lane.open_messages == 0) end_operation(end.rank, end.lane);
  }
}

}  // namespace ashlar::sim
