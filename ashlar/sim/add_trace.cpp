#include "ashlar/core/error.h"
#include "ashlar/sim/recorded_rank.h"
#include "ashlar/sim/traces.h"

namespace ashlar::sim {

RecordedRank::RecordedRank(ProgramBuilder& builder, int rank, const Trace& trace)
    : builder_(builder), rank_(rank), trace_(trace) {
  for (int lane = 0; lane < trace.num_lanes(); ++lane) {
    lanes_.push_back(builder.lane(rank, trace.lane_name(lane)));
    auto& ends = ends_.emplace_back();
    for (const TraceEvent& event : trace.lane_events(lane))
      if (event.kind == TraceEvent::Kind::kEnded) ends[event.ticket] = &event;
  }
}

ProgramPlace RecordedRank::place_of(const TracePlace& place) const {
  return {builder_.text(trace_.phase(place)), place.block, place.micro_batch, place.branch};
}

KernelWork RecordedRank::work_of(const TraceEvent& kernel) const {
  return {std::string(trace_.text(kernel.name)),
          kernel.dtype,
          trace_.dims(kernel),
          kernel.flop,
          kernel.bytes,
          kernel.varies,
          kernel.count};
}

RankOperation RecordedRank::operation_of(const TraceEvent& post, int group) const {
  RankOperation operation{.op = machine::collective_of(trace_.text(post.name)),
                          .dtype = post.dtype,
                          .lane = int16_t(post.lane >= 0 ? lanes_[size_t(post.lane)] : -1),
                          .label = builder_.text(trace_.text(post.label)),
                          .group = group,
                          .number = post.number,
                          .root = post.root,
                          .bytes = post.bytes};
  if (post.lane < 0) return operation;
  const auto end = ends_[size_t(post.lane)].find(post.ticket);
  ASHLAR_ASSERT(end != ends_[size_t(post.lane)].end());
  operation.sent_bytes = end->second->bytes;
  operation.received_bytes = end->second->received_bytes;
  operation.rounds = int32_t(end->second->count);
  return operation;
}

std::span<const TraceMessage> RecordedRank::messages_of(const TraceEvent& post) const {
  const bool chunks =
      trace_.text(post.name) == "all_gather" || trace_.text(post.name) == "reduce_scatter";
  return chunks ? std::span<const TraceMessage>() : trace_.messages(post);
}

void RecordedRank::add(const TraceEvent& e) {
  if (e.kind == TraceEvent::Kind::kKernel) {
    builder_.kernel(rank_, work_of(e), place_of(e.place));
  } else if (e.kind == TraceEvent::Kind::kPost) {
    const TraceGroup& group = trace_.group(e.group);
    builder_.post(rank_, operation_of(e, builder_.group(group.name, group.world_ranks)), e.ticket,
                  messages_of(e), place_of(e.place));
  } else if (e.kind == TraceEvent::Kind::kWait) {
    builder_.wait(rank_, lanes_[size_t(e.lane)], e.ticket, place_of(e.place));
  }
}

void add_trace(ProgramBuilder& builder, int rank, const Trace& trace) {
  RecordedRank recorded(builder, rank, trace);
  for (const TraceEvent& event : trace.events()) recorded.add(event);
  builder.end_step(rank);
}

}  // namespace ashlar::sim
