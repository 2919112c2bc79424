// The times of a program's parts on a machine: the questions that a replay asks.
#pragma once

#include <span>
#include <vector>

#include "ashlar/sim/flow_sets.h"
#include "ashlar/sim/program.h"

namespace ashlar::sim {

// A part of an operation.  Its ranks meet before it and after it.  First the latency passes; then
// the bytes of the busiest edge move over links, and every rank's lane takes processor time.
struct OperationPart {
  double latency_s = 0;
  double work = 0;   // bytes; 0: no links
  double limit = 0;  // bytes a second at most; 0: what the links give
  std::vector<ResourceUse> links = {};
  double core_s = 0;               // of every rank's lane
  double core_s_per_received = 0;  // more, for each byte that the rank receives in the operation
};

struct CoreShare {
  int resource = -1;   // cores; -1: the rank's kernels run alone, as on a device
  double threads = 1;  // cores that a kernel wants
};

// A machine as a replay sees it, and how long things take there.  Answers do not change.
class Costs {
 public:
  virtual ~Costs() = default;
  // Called once, before all others: resources of the machine.
  virtual void build(FlowSets& sets) = 0;
  // Seconds of a kernel of this rank, without others on its cores.
  virtual double kernel_s(int rank, const ProgramEvent& event) const = 0;
  // All ranks of the group have come; operation: of its first rank.
  virtual std::vector<OperationPart> parts(const RankGroup& group,
                                           const RankOperation& operation) const = 0;
  // A message between two ranks of the world.
  virtual OperationPart message(int from, int to, int64_t bytes) const = 0;
  // The cores of a rank's kernels, and of its lanes, which take one each.
  virtual CoreShare cores(int) const { return {}; }
  virtual int lane_cores(int rank) const { return cores(rank).resource; }
  // The share of its received bytes that a rank really receives, where the load is uneven.
  virtual double received_scale(int, const RankOperation&) const { return 1; }
  // How much longer a lane takes to begin if all cores are busy.
  virtual double wake_busy_s() const { return 0; }
  // The factor by which these kernels slow down while a lane of the rank moves data.
  virtual double contention(const ProgramEvent&) const { return 1; }
  // Bytes that every rank reads from the disk of its node during a step, for the next one.
  virtual double read_bytes() const { return 0; }
  virtual int disk(int) const { return -1; }
};

}  // namespace ashlar::sim
