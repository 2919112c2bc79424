// The processor time that other programs take while something is measured: busy time of the CPUs
// that the ranks may use, less the ranks' own, per core and second.  A measurement that others
// disturb says nothing about the machine (machine/verdict.h).
//
// Source   /proc/stat, which counts in ticks of 10 ms: over a second on two cores the share is
//          known to about 1 %.  Time that a hypervisor takes from the CPUs counts as foreign.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/clock.h"

namespace ashlar::bench {

struct ForeignShare {
  std::optional<double> share;  // of the machine with the largest; nothing where /proc/stat is not
  std::string neighbour;        // "cc1plus (process 4711 on n07)", which took most; "" if unknown
  double shown() const { return share.value_or(0); }
};

class ForeignWatch {
 public:
  // Begins to watch.  Every rank has a watch.
  explicit ForeignWatch(comm::Group& ranks);
  // The share since the start, the same on all ranks, which call it together.
  ForeignShare end();

 private:
  struct Seen {
    std::vector<double> busy_s;                           // by CPU
    double stolen_s = 0;                                  // of all CPUs, by a hypervisor
    std::map<int, std::pair<std::string, double>> by_id;  // processes: name, processor seconds
    double own_s = 0;                                     // of this process
  };
  static Seen look();

  comm::Group& ranks_;
  Seen before_;
  Clock::time_point start_;
};

}  // namespace ashlar::bench
