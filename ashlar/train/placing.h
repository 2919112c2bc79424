// Where the ranks of a run and their threads compute: the placement (core/placement.h) of the ranks
// of each machine, within the CPUs that a launcher, taskset or a control group left to each.
//
// Ranks with the same CPUs divide them; a rank that was bound to CPUs of its own keeps these.  If
// sets differ but overlap, no thread gets a CPU of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/comm/group.h"
#include "ashlar/core/placement.h"

namespace ashlar::train {

// The things that threads are bound to, in mpirun's words.
enum class Binding : uint8_t {
  // Threads of kernels to the cores of a last-level cache each, of which their rank has a share.  A
  // single rank that leaves cores idle is not bound: a second program would meet it there.
  kCache,
  kCore,  // threads of kernels to a core each, also where some stay idle
  kNone,  // to nothing
};
// Reads --bind-to: "l3cache", "core" or "none"; "" gives kCache.  kConfig for another word.
Binding parse_binding(std::string_view word);

struct Placed {
  int num_threads = 1;        // of the rank's kernels
  int num_cpus = 1;           // that the ranks of the machine use together
  std::vector<Cpus> threads;  // the CPUs of each; empty: the system chooses
  Cpus home;                  // of all other threads of the rank; empty: the system chooses
  std::string text;           // "CPUs 0-3 of NUMA node 0"; "any of CPUs 0-3"; "CPUs 0-3, not bound"
};

// The places of all ranks of a machine by the CPUs that each may use, in the order of ranks.
// num_threads: of each rank; 0: as many as CPUs of its share.
std::vector<Placed> place_host(const Topology& topology, std::span<const Cpus> usable,
                               int num_threads, Binding binding);

// The place of this process among the ranks of its machine.  Every rank calls it.
Placed place_process(comm::Group& ranks, int num_threads, Binding binding);

// Binds the calling thread, the first of the rank's kernels, and the threads that it starts, while
// the result lives.
BoundThread bind_to(const Placed& placed);

// The topology that a placement needs: this machine's, or a flat one where nothing is bound.
Topology topology_for(Binding binding);

// "rank 0: CPU 0 of NUMA node 0; rank 1: ...", in short form for many ranks.
std::string describe_places(std::span<const std::string> places);

}  // namespace ashlar::train
