// The processor time that other programs take while something is measured: busy time of the CPUs
// that the ranks may use, less the ranks' own, per core and second.  A measurement that others
// disturb says nothing about the machine (machine/verdict.h).
//
// Source   /proc/stat, which counts in ticks of 10 ms: over a second the share is known to about
//          1 %, below 0.1 s it is unknown.  Busy is the time in which a CPU was not idle, for the
//          kernel counts idle time exactly and the rest by samples; below 0.5 s, where a tick of
//          idle time matters, the samples count.  Time that a hypervisor takes from the CPUs counts
//          as foreign; interrupts and threads of the kernel do not, for they work for the ranks as
//          well.
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
  // Rows of the part; how many others disturbed, and their mean share meanwhile.
  int64_t rows = 0, disturbed_rows = 0;
  double share_of_disturbed = 0;
  double shown() const { return share.value_or(0); }
};

std::vector<int> own_cpus();  // that this process may use

class ForeignWatch {
 public:
  // Begins to watch.  Every rank has a watch.
  explicit ForeignWatch(comm::Group& ranks);
  // The share since the start, the same on all ranks, which call it together.
  ForeignShare end();

 private:
  struct Process {
    std::string name;
    bool is_of_kernel = false;
    double seconds = 0;  // of processors
  };
  struct Seen {
    std::vector<double> busy_s, idle_s;  // by CPU; interrupts count as idle
    double stolen_s = 0;                 // of all CPUs, by a hypervisor
    std::map<int, Process> by_id;
    double own_s = 0;  // of this process
    Clock::time_point at;
  };
  static Seen look();
  static std::optional<Process> process_of(int id);

  comm::Group& ranks_;
  Seen before_;
};

}  // namespace ashlar::bench
