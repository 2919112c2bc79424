#include "ashlar/core/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <map>
#include <memory>

#include "ashlar/core/error.h"

namespace ashlar {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Hwloc = std::unique_ptr<hwloc_topology, DestroyTopology>;

// Null if hwloc cannot begin.
Hwloc begin_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return nullptr;
  // Whole machines: `allowed` says what a control group leaves.
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  return Hwloc(topology);
}

Cpus cpus_of(hwloc_const_cpuset_t set) {
  Cpus cpus;
  if (!set || hwloc_bitmap_weight(set) < 0) return cpus;  // none, or infinitely many
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
    cpus.push_back(cpu);
  return cpus;
}

// The ordinal of the object of that type around a CPU; 0 where the machine has none.
int ordinal_above(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t pu) {
  const hwloc_obj_t above = hwloc_get_ancestor_obj_by_type(topology, type, pu);
  return above ? int(above->logical_index) : 0;
}

// The largest cache around a CPU; CPUs without any share none.
int last_cache_above(hwloc_obj_t pu, std::map<hwloc_obj_t, int>& ordinals) {
  hwloc_obj_t last = pu;
  for (hwloc_obj_t at = pu; at; at = at->parent)
    if (hwloc_obj_type_is_dcache(at->type)) last = at;
  return ordinals.try_emplace(last, int(ordinals.size())).first->second;
}

void add_nodes(hwloc_topology_t topology, Topology& result) {
  const int count = std::max(0, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, unsigned(i));
    result.numa_nodes.push_back({int(node->os_index),
                                 cpus_of(node->cpuset),
                                 int64_t(node->attr->numanode.local_memory),
                                 {}});
  }
  hwloc_distances_s* distances = nullptr;
  unsigned found = 1;
  if (hwloc_distances_get_by_name(topology, "NUMALatency", &found, &distances, 0) != 0 ||
      found == 0)
    return;
  const unsigned n = distances->nbobjs;
  for (unsigned i = 0; i < n; ++i)
    for (unsigned j = 0; j < n; ++j)
      result.numa_nodes[distances->objs[i]->logical_index].distances.push_back(
          int64_t(distances->values[i * n + j]));
  hwloc_distances_release(topology, distances);
}

void add_caches(hwloc_topology_t topology, Topology& result) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                      HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L5CACHE})
    for (int i = 0; i < hwloc_get_nbobjs_by_type(topology, type); ++i) {
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, unsigned(i));
      result.caches.push_back({int(cache->attr->cache.depth), int64_t(cache->attr->cache.size),
                               cpus_of(cache->cpuset)});
    }
}

Topology read_topology(hwloc_topology_t topology) {
  Topology result;
  add_nodes(topology, result);
  add_caches(topology, result);
  result.allowed = cpus_of(hwloc_topology_get_allowed_cpuset(topology));
  std::map<hwloc_obj_t, int> last_caches;
  for (int i = 0; i < hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU); ++i) {
    const hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, unsigned(i));
    Topology::Cpu cpu;
    cpu.number = int(pu->os_index);
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
    cpu.core = core ? int(core->logical_index) : i;
    cpu.package = ordinal_above(topology, HWLOC_OBJ_PACKAGE, pu);
    cpu.cache = last_cache_above(pu, last_caches);
    for (size_t node = result.numa_nodes.size(); node-- > 0;) {
      const Cpus& cpus = result.numa_nodes[node].cpus;
      if (std::binary_search(cpus.begin(), cpus.end(), cpu.number)) cpu.numa_node = int(node);
    }
    result.cpus.push_back(cpu);
  }
  return result;
}

template <typename Key>
int count_distinct(const std::vector<Topology::Cpu>& cpus, Key key) {
  std::vector<int> all;
  for (const Topology::Cpu& cpu : cpus) all.push_back(key(cpu));
  std::sort(all.begin(), all.end());
  return int(std::unique(all.begin(), all.end()) - all.begin());
}

}  // namespace

int Topology::num_packages() const {
  return count_distinct(cpus, [](const Cpu& cpu) { return cpu.package; });
}

int Topology::num_cores() const {
  return count_distinct(cpus, [](const Cpu& cpu) { return cpu.core; });
}

int Topology::threads_per_core() const {
  std::map<int, int> counts;
  int most = 0;
  for (const Cpu& cpu : cpus) most = std::max(most, ++counts[cpu.core]);
  return most;
}

double Topology::farthest() const {
  double most = 1;
  for (size_t i = 0; i < numa_nodes.size(); ++i) {
    const std::vector<int64_t>& distances = numa_nodes[i].distances;
    if (i >= distances.size() || distances[i] <= 0) continue;
    for (const int64_t distance : distances)
      most = std::max(most, double(distance) / double(distances[i]));
  }
  return most;
}

Topology this_machine() {
  const Hwloc topology = begin_topology();
  if (!topology || hwloc_topology_load(topology.get()) != 0) return flat_topology(usable_cpus());
  Topology found = read_topology(topology.get());
  return found.cpus.empty() ? flat_topology(usable_cpus()) : found;
}

Topology parse_topology(const std::string& description) {
  const Hwloc topology = begin_topology();
  ASHLAR_REQUIRE(topology, kDevice, "hwloc cannot begin a topology");
  const bool is_xml = description.starts_with("<");
  const int set = is_xml ? hwloc_topology_set_xmlbuffer(topology.get(), description.c_str(),
                                                        int(description.size()) + 1)
                         : hwloc_topology_set_synthetic(topology.get(), description.c_str());
  ASHLAR_REQUIRE(set == 0 && hwloc_topology_load(topology.get()) == 0, kConfig,
                 "hwloc does not understand the topology {}; expected its XML, or a description "
                 "like \"package:2 core:8 pu:2\"",
                 is_xml ? std::string("in this XML") : "\"" + description + "\"");
  return read_topology(topology.get());
}

Topology flat_topology(const Cpus& cpus) {
  Topology result;
  result.is_known = false;
  result.allowed = cpus;
  result.numa_nodes.push_back({0, cpus, 0, {}});
  for (const int cpu : cpus) result.cpus.push_back({cpu, int(result.cpus.size()), 0, 0, 0});
  return result;
}

}  // namespace ashlar
