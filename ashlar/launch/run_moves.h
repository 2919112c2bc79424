// The moves of a run that goes on: to more nodes, or away from the node of a slow rank.
//
// A move ends the attempt at a save, and the next one starts on other nodes.  A move pays if it
// saves the rest of the run, at its present pace, more than twice the time of a restart.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "ashlar/launch/fleet.h"

namespace ashlar::launch {

class RunMoves {
 public:
  static constexpr double kUsualRestart_s = 30;  // before this launch has seen one
  static constexpr double kSettled_s = 20;       // after the first step, when the pace is known
  static constexpr double kLookEvery_s = 5;

  explicit RunMoves(Fleet& fleet) : fleet_(fleet) {}
  // The attempt that runs has done its first step.
  void begin(int64_t step, double now);

  struct Progress {
    int64_t step = 0, num_steps = 0;  // num_steps 0: rank 0 is not seen
    double restart_s = 0;             // of this launch, in the mean; 0: there was none
  };
  // A move to more nodes that pays; nullopt: there is none, or it was looked for a moment ago.
  std::optional<NodePlacement::Move> grow(const Progress& progress, double now);
  // One away from a slow rank, without which steps take that share less time: once for a rank,
  // since its work may be more than that of others wherever it runs.
  std::optional<NodePlacement::Move> leave(int slow_rank, double share, const Progress& progress,
                                           double now);

 private:
  bool pays(const NodePlacement::Move& move, const Progress& progress, double now) const;
  Fleet& fleet_;
  double stepped_s_ = 0, looked_s_ = 0;
  int64_t stepped_at_ = 0;
  std::set<int> left_ranks_;
};

}  // namespace ashlar::launch
