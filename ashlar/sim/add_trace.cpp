#include "ashlar/core/error.h"
#include "ashlar/sim/traces.h"

namespace ashlar::sim {
namespace {

ProgramPlace place_of(ProgramBuilder& builder, const Trace& trace, const TracePlace& place) {
  return {builder.text(trace.phase(place)), place.block, place.micro_batch, place.branch};
}

// The ends of a lane's operations, by ticket.
std::map<int64_t, const TraceEvent*> ends_of(const Trace& trace, int lane) {
  std::map<int64_t, const TraceEvent*> ends;
  for (const TraceEvent& event : trace.lane_events(lane))
    if (event.kind == TraceEvent::Kind::kEnded) ends[event.ticket] = &event;
  return ends;
}

}  // namespace

void add_trace(ProgramBuilder& builder, int rank, const Trace& trace) {
  std::vector<int> lanes;
  std::vector<std::map<int64_t, const TraceEvent*>> ends;
  for (int lane = 0; lane < trace.num_lanes(); ++lane) {
    lanes.push_back(builder.lane(rank, trace.lane_name(lane)));
    ends.push_back(ends_of(trace, lane));
  }
  for (const TraceEvent& e : trace.events()) {
    const ProgramPlace place = place_of(builder, trace, e.place);
    if (e.kind == TraceEvent::Kind::kKernel) {
      builder.kernel(rank,
                     {std::string(trace.text(e.name)), e.dtype, trace.dims(e), e.flop, e.bytes,
                      e.varies, e.count},
                     place);
    } else if (e.kind == TraceEvent::Kind::kPost) {
      const TraceGroup& group = trace.group(e.group);
      RankOperation operation{.op = machine::collective_of(trace.text(e.name)),
                              .dtype = e.dtype,
                              .lane = int16_t(e.lane >= 0 ? lanes[size_t(e.lane)] : -1),
                              .label = builder.text(trace.text(e.label)),
                              .group = builder.group(group.name, group.world_ranks),
                              .number = e.number,
                              .root = e.root,
                              .bytes = e.bytes};
      if (e.lane >= 0) {
        const auto end = ends[size_t(e.lane)].find(e.ticket);
        ASHLAR_ASSERT(end != ends[size_t(e.lane)].end());
        operation.sent_bytes = end->second->bytes;
        operation.received_bytes = end->second->received_bytes;
        operation.rounds = int32_t(end->second->count);
      }
      builder.post(rank, operation, e.ticket, trace.messages(e), place);
    } else if (e.kind == TraceEvent::Kind::kWait) {
      builder.wait(rank, lanes[size_t(e.lane)], e.ticket, place);
    }
  }
  builder.end_step(rank);
}

}  // namespace ashlar::sim
