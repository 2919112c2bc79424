// The processors of a machine: sockets, cores, their hardware threads, caches and NUMA nodes, as
// hwloc finds them.  Only topology.cpp includes hwloc.
//
// A CPU is a hardware thread, numbered by the system; a core has one or more (SMT siblings).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/core/affinity.h"

namespace ashlar {

struct Topology {
  struct Cpu {
    int number = 0;
    // Ordinals of what it belongs to, from 0 on the whole machine; cache: the last level's.
    int core = 0, package = 0, numa_node = 0, cache = 0;
  };
  struct NumaNode {
    int number = 0;  // the system's
    Cpus cpus;       // none: memory alone
    int64_t memory_bytes = 0;
    std::vector<int64_t> distances;  // to every node, 10 for itself; empty if unknown
  };
  struct Cache {
    int level = 1;
    int64_t bytes = 0;
    Cpus cpus;  // that share it
  };

  std::vector<Cpu> cpus;  // neighbours in the machine are neighbours here
  std::vector<NumaNode> numa_nodes;
  std::vector<Cache> caches;  // of data; all of a level together, the first level first
  Cpus allowed;               // by control groups
  bool is_known = true;       // false: the system shows no more than numbers of CPUs

  int num_packages() const;
  int num_cores() const;
  int threads_per_core() const;  // of the core with most
  // The largest distance between nodes over that of a node to itself; 1 for a single node.
  double farthest() const;
};

// This machine, with CPUs that a control group withholds.
Topology this_machine();
// A machine by its description: one of hwloc's synthetic ones, such as "package:2 core:56 pu:2", or
// the text of an XML file of lstopo.  kConfig if hwloc does not understand it.
Topology parse_topology(const std::string& description);
// CPUs of which nothing is known: each is a core, all are neighbours.
Topology flat_topology(const Cpus& cpus);

}  // namespace ashlar
