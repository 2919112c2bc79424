// The CPUs of ranks and of their threads on one machine: a pure function of the machine.
//
//   where      ranks are spread over sockets, then NUMA nodes, then last-level caches, as evenly as
//              their cores allow; a rank that fits into one of these stays within it, and ranks of
//              neighbouring numbers are neighbours
//   threads    on cores side by side, one on each; SMT siblings only once no core is left
//   never      a CPU that the ranks may not use, or a CPU for two threads
//
// More threads than CPUs: no thread has a CPU of its own, and a rank has the NUMA nodes of its
// share, where the system moves threads as it does without placement.
#pragma once

#include <vector>

#include "ashlar/core/affinity.h"
#include "ashlar/core/topology.h"

namespace ashlar {

struct RankPlace {
  Cpus cpus;     // the rank's share: no two ranks have one in common, unless threads exceed CPUs
  Cpus threads;  // the CPU of each thread, in their order; empty if threads exceed CPUs
  Cpus nearby;   // all usable CPUs of the NUMA nodes of its share
};

// The places of num_ranks ranks with so many threads each, which share the usable CPUs.  CPUs that
// the topology does not have count as cores of their own.
std::vector<RankPlace> place_ranks(const Topology& topology, const Cpus& usable, int num_ranks,
                                   int num_threads);

// The number of threads for which every rank has CPUs: at least 1.
int threads_of_share(const Cpus& usable, int num_ranks);

// Whether so many threads leave none of the usable cores idle.
bool fills_cores(const Topology& topology, const Cpus& usable, int num_threads);

// The CPUs among these that share the last-level cache of one of them.
Cpus cache_mates(const Topology& topology, const Cpus& cpus, int cpu);

// "CPUs 0-3 of NUMA node 0".
std::string place_text(const Topology& topology, const Cpus& cpus);

}  // namespace ashlar
