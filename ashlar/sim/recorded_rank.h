// The events that a rank recorded, as parts of programs.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "ashlar/sim/program_builder.h"

namespace ashlar::sim {

class RecordedRank {
 public:
  // rank: whose program is given the lanes of the trace.  Builder and trace must outlive it.
  RecordedRank(ProgramBuilder& builder, int rank, const Trace& trace);

  void add(const TraceEvent& event);  // to the rank's program

  ProgramPlace place_of(const TracePlace& place) const;
  KernelWork work_of(const TraceEvent& kernel) const;
  // group: of the builder.
  RankOperation operation_of(const TraceEvent& post, int group) const;
  // Without the chunks of gathers and sums, which are not messages.
  std::span<const TraceMessage> messages_of(const TraceEvent& post) const;
  int lane_of(const TraceEvent& event) const { return lanes_[size_t(event.lane)]; }

 private:
  ProgramBuilder& builder_;
  const int rank_;
  const Trace& trace_;
  std::vector<int> lanes_;                                  // of the program, by lane of the trace
  std::vector<std::map<int64_t, const TraceEvent*>> ends_;  // by lane and ticket
};

}  // namespace ashlar::sim
