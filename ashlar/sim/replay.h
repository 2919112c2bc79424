// Replays the programs of all ranks on a machine: when every kernel, operation and wait begins and
// ends.
//
//   rank       runs its events in order: a kernel takes the time that Costs says, shared with what
//              else runs on its cores; a wait lasts until its operation has ended
//   lane       runs its operations one at a time; it holds kMaxQueued, and the rank that posts one
//              more waits for room
//   collective begins on a rank when its lane comes to it, moves when all ranks of its group have
//              begun, and ends after its parts (costs.h)
//   messages   the k-th from a to b of a group meets the k-th that b expects of a, and moves when
//              both operations have begun; processor time of a lane goes to one after the other
//
// Events at the same time happen in the order in which they were planned, so two replays are equal
// bit for bit.  A program that cannot go on is named, rank by rank.
#pragma once

#include <string>
#include <vector>

#include "ashlar/sim/costs.h"

namespace ashlar::sim {

inline constexpr int kQueueOfALane = 64;  // comm/executor.h

struct ReplayOptions {
  int repeats = 1;          // of the programs, one behind the other
  bool keep_spans = false;  // of the last repeat
};

// Something that took time on a rank's thread or lane.
struct ReplaySpan {
  enum class Kind : uint8_t { kKernel, kPost, kWait, kOperation, kStall };
  Kind kind = Kind::kKernel;
  int16_t lane = -1;  // of an operation
  int32_t index = 0;  // of the event in the rank's program; of the operation
  double begin_s = 0, end_s = 0;
  double met_s = 0;  // kOperation: when all ranks had come
};

// A rank's time in the last step; the parts add up to the step.
struct RankShare {
  double step_s = 0;
  double compute_s = 0;  // in kernels
  double exposed_s = 0;  // in waits while the lane moved data
  double waiting_s = 0;  // in waits while other ranks had not come
  double between_s = 0;  // the rest: full queues, reading the next batch
};

struct Replayed {
  std::string problem;         // "", or who waits for what for ever
  std::vector<double> step_s;  // of every step: from the end of the step before, on the last rank
  std::vector<RankShare> ranks;
  std::vector<std::vector<ReplaySpan>> spans;  // by rank, if kept
  double end_s = 0;
};

Replayed replay(const RankPrograms& programs, Costs& costs, const ReplayOptions& options = {});

}  // namespace ashlar::sim
