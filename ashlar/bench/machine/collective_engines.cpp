#include "ashlar/bench/machine/collective_engines.h"

#include <sched.h>

#include "ashlar/comm/agree.h"
#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/train/machine.h"

namespace ashlar::bench {
namespace {

using CpuSet = std::vector<uint8_t>;  // 1 for each CPU that may be used

CpuSet cpus_of_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CpuSet cpus(CPU_SETSIZE);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (size_t cpu = 0; cpu < cpus.size(); ++cpu) cpus[cpu] = CPU_ISSET(cpu, &set) ? 1 : 0;
  return cpus;
}

// This thread, and those that it starts, may run on these CPUs until the end of the scope.
class WiderCpus {
 public:
  explicit WiderCpus(const CpuSet& cpus) : before_(cpus_of_thread()) { use(cpus); }
  ~WiderCpus() { use(before_); }
  WiderCpus(const WiderCpus&) = delete;

 private:
  // Where the system refuses it, the threads share the CPUs that they have.
  static void use(const CpuSet& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (size_t cpu = 0; cpu < cpus.size(); ++cpu)
      if (cpus[cpu]) CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  const CpuSet before_;
};

// The CPUs of all ranks on the machine of rank 0.
CpuSet cpus_of_ranks(comm::Group& ranks) {
  const std::string leader = comm::text_from_leader(ranks, train::host_name(), "host");
  CpuSet mine = cpus_of_thread();
  if (train::host_name() != leader) mine.assign(mine.size(), 0);
  CpuSet all(mine.size() * size_t(ranks.size()));
  ranks.all_gather(tensor_over(std::span(mine)), tensor_over(std::span(all)), "CPUs").wait();
  for (size_t i = 0; i < all.size(); ++i) mine[i % mine.size()] |= all[i];
  return mine;
}

}  // namespace

std::vector<EngineOfGroup> engines_of(const Rig& rig, const CollectiveOptions& options,
                                      function_ref<comm::SplitKey(int rank)> key_of) {
  const bool processes = rig.engine.starts_with("mpi");
  std::vector<EngineOfGroup> engines;
  for (const CollectiveEngine kind : options.engines) {
    EngineOfGroup& engine = engines.emplace_back();
    engine.kind = kind;
    switch (kind) {
      case CollectiveEngine::kRanks:
        engine.name = rig.engine;
        break;
      case CollectiveEngine::kExact:
      case CollectiveEngine::kNative:
        ASHLAR_REQUIRE(processes, kConfig,
                       "--engines has exact or native, which are MPI's: start this with mpirun, or "
                       "choose thread");
        engine.name = kind == CollectiveEngine::kNative ? "mpi-native" : "mpi";
        break;
      case CollectiveEngine::kThread:
        ASHLAR_REQUIRE(!processes || options.shape.kind == GroupShape::Kind::kAll, kConfig,
                       "--engines has thread, whose ranks are one process, but --shape is {}; "
                       "expected all",
                       options.shape.text());
        engine.name = "thread";
        break;
    }
    if (kind == CollectiveEngine::kThread && processes) continue;
    const bool native = kind == CollectiveEngine::kNative;
    engine.group =
        rig.ranks.split(native ? "measured native" : "measured", key_of, native ? kNativeLane : "");
  }
  return engines;
}

void on_threads(const Rig& rig, function_ref<void(comm::Group& group)> body) {
  const CpuSet cpus = cpus_of_ranks(rig.ranks);
  if (rig.leads()) {
    const WiderCpus wider(cpus);
    comm::run_ranks(rig.ranks.size(), {}, rig.allocator, body);
  }
  rig.ranks.barrier("threads").wait();
}

}  // namespace ashlar::bench
