// The settings and versions of a host on which its numbers depend, as text: what a profile's
// identity holds, which of them are known to hurt, and how the hosts of a run differ.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/comm/group.h"

namespace ashlar::bench {

// "kernel" -> "6.1.0-25-amd64".  A fact that the system does not show is absent.
using HostFacts = std::map<std::string, std::string>;

// Facts of this host: kernel, cpu, microcode, isa, memory, cpus, numa_nodes, governor,
// numa_balancing, huge_pages, locked_memory, shared_memory, cpu_limit, and the versions of
// libraries that are loaded.
HostFacts host_facts();

// A line for each fact that is known to hurt, with the remedy.
std::vector<std::string> host_warnings(const HostFacts& facts);

// One row for each fact in which hosts differ: its values, each with the hosts that have it, the
// most frequent first; "" without a difference.
struct NamedHost {
  std::string name;
  HostFacts facts;
};
std::string drift_text(std::span<const NamedHost> hosts);

// The hosts of the ranks, in the order of their first ranks.  Every rank calls it.
std::vector<NamedHost> hosts_of(comm::Group& ranks);

}  // namespace ashlar::bench
