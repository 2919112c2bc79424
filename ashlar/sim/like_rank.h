// The program of a rank that does the same as another, the like, whose trace is known: the same
// kernels, posts and waits in groups of its own.  Only parts that depend on the place of its shard
// are its own.
//
// The ranks differ along one axis of the mesh, so the rank's groups are those of the like that have
// both, and otherwise have its ranks moved by the distance between the two.
#pragma once

#include <optional>
#include <vector>

#include "ashlar/sim/recorded_rank.h"

namespace ashlar::sim {

class LikeRank {
 public:
  // The builder has the program of `like` from its trace (add_trace), and nothing else of it.
  // own: what the rank does otherwise; its operations are messages of a group that stands for
  // `own_group` of the like.
  LikeRank(ProgramBuilder& builder, int rank, int like, const Trace& trace, const Trace& own,
           const TraceGroup& own_group);

  // Adds events [begin, end) of the like's trace.
  void repeat(size_t begin, size_t end);
  // Adds its own events [begin, end), at a place of the like's.
  void add_own(size_t begin, size_t end, const TracePlace& place);
  void end_step() { builder_.end_step(rank_); }

 private:
  // A group of the like, as the rank sees it.
  struct Moved {
    int group = -1;  // of the builder; -1: not known yet
    int member = 0, like_member = 0;
    std::vector<int> ranks;
  };
  Moved moved(std::string_view name, std::span<const int> ranks) const;
  void post(const TraceEvent& event, const ProgramEvent& of_like);
  void set_bytes(RankOperation& operation, const TraceEvent& event, const Moved& group) const;

  ProgramBuilder& builder_;
  const int rank_, like_;
  const Trace& trace_;
  std::vector<Moved> groups_;  // by group of the trace
  const Trace& own_;
  const TraceGroup& stands_for_;
  const RecordedRank recorded_;  // of own_
  std::optional<Moved> own_group_;
};

}  // namespace ashlar::sim
