#include <algorithm>

#include "ashlar/machine/profile.h"

namespace ashlar::machine {

namespace {

const ProfileKey kProfileKeys[] = {
    {"node.devices", "1", "devices (GPUs), or CPU ranks, of a node", ""},
    {"node.sockets", "1", "CPU sockets", ""},
    {"node.cores", "1", "CPU cores of the node", ""},
    {"node.cpus", "1", "hardware threads of the node", ""},
    {"node.smt", "1", "hardware threads of a core", ""},
    {"node.usable_cpus", "1", "hardware threads that control groups leave to programs", ""},
    {"node.numa_nodes", "1", "NUMA nodes", ""},
    {"node.numa_distance", "1", "distance of the farthest NUMA node, over that of the own", ""},
    {"node.memory", "B", "host memory", ""},
    {"node.l1", "B", "first-level data cache of a core", ""},
    {"node.l2", "B", "second-level cache of a core", ""},
    {"node.l3", "B", "third-level caches of the node together", ""},
    {"node.l3_caches", "1", "third-level caches of the node", ""},
    {"device.compute_units", "1", "compute units (streaming multiprocessors) of a device", ""},
    {"device.memory", "B", "memory of a device", ""},
    {"device.peak_bf16", "TFLOP/s", "dense bf16 products, by the data sheet", ""},
    {"device.peak_fp32", "TFLOP/s", "fp32 products, by the data sheet", ""},
    {"device.peak_memory", "GB/s", "memory bandwidth, by the data sheet", ""},
    {"compute.achievable_bf16", "TFLOP/s", "bf16 products: median of the 5 fastest",
     "ashlar bench products", "products run in fp32 here"},
    {"compute.sustained_bf16", "TFLOP/s", "bf16 products over 2 s with all devices busy",
     "ashlar bench products", "products run in fp32 here"},
    {"compute.achievable_fp32", "TFLOP/s", "fp32 products: median of the 5 fastest",
     "ashlar bench products"},
    {"compute.sustained_fp32", "TFLOP/s", "fp32 products over 2 s with all devices busy",
     "ashlar bench products"},
    {"compute.flop_to_90", "GFLOP", "work of a product that reaches 90 % of the largest rate",
     "ashlar bench products", "not with --quick"},
    {"memory.copy", "GB/s", "bytes read and written by a copy of large arrays",
     "ashlar bench stream"},
    {"memory.triad", "GB/s", "bytes read and written by a = b + s c on large arrays",
     "ashlar bench stream"},
    {"memory.copy_streaming", "GB/s", "the same copy with stores that pass the caches",
     "ashlar bench stream", "this processor's family has no such stores"},
    {"memory.triad_streaming", "GB/s", "the same triad with stores that pass the caches",
     "ashlar bench stream", "this processor's family has no such stores"},
    {"memory.numa_nodes", "1", "NUMA nodes with CPUs", "ashlar bench stream",
     "the system does not list them"},
    {"memory.triad_node", "GB/s", "triad on the slowest NUMA node alone, where there are several",
     "ashlar bench stream", "the machine has no more than 1 NUMA node"},
    {"launch.kernel", "us", "from the call of an empty kernel to its end", "ashlar bench launch"},
    {"launch.wake_idle", "us", "waking a thread on an idle core", "ashlar bench launch"},
    {"launch.wake_busy", "us", "waking a thread on a core that computes", "ashlar bench launch"},
    {"launch.lane_cores", "1",
     "share of a core that a lane gets while all threads compute; 1: a core of its own",
     "ashlar bench launch"},
    {"topology.link", "GB/s",
     "mesh: a link between two devices; switch: a device's links together; per direction", ""},
    {"topology.link_usable", "1", "share of a link's rate that collectives reach",
     "ashlar bench collectives", "the rate of its links is unknown"},
    {"topology.link_latency", "us", "latency of a hop inside a node", "ashlar bench p2p",
     "no two ranks shared a node"},
    {"topology.nic", "GB/s", "NIC of a device, per direction", ""},
    {"topology.nic_usable", "1", "share of a NIC's rate that collectives reach",
     "ashlar bench collectives", "the rate of its NICs is unknown"},
    {"topology.nic_latency", "us", "latency of a hop between nodes", "ashlar bench p2p",
     "all ranks were on one node"},
    {"topology.nodes", "1", "nodes of the cluster", ""},
    {"topology.rails", "1", "rails: NICs of a node that meet only their own kind", ""},
    {"topology.oversubscription", "1", "leaf bandwidth over spine bandwidth", ""},
    {"contention.products", "1",
     "processor time of products beside a collective or a copy, over alone", "ashlar bench launch"},
    {"storage.read", "GB/s", "sequential reads, caches bypassed", "ashlar bench storage",
     "the page cache keeps the files"},
    {"storage.write", "GB/s", "sequential writes with fsync", "ashlar bench storage"},
    {"storage.iops", "1/s", "random reads of 4 KiB", "ashlar bench storage",
     "the page cache keeps the files"},
    {"storage.fsync", "us", "fsync after a write of 4 KiB", "ashlar bench storage"},
    {"storage.fsync_p99", "us", "the same, of 99 in 100 at most", "ashlar bench storage"},
    {"storage.scatter", "1", "pages that the loader reads over those of contiguous reads",
     "ashlar bench storage --recipe FILE", "it needs a run: --recipe FILE"},
};

bool has(const Profile& profile, std::string_view key) {
  const auto holds = [&](const Mount& mount) {
    return mount.quantities.find(key) != mount.quantities.end();
  };
  return profile.find(key) || std::any_of(profile.mounts.begin(), profile.mounts.end(), holds);
}

}  // namespace

const std::vector<ProfileKey>& profile_keys() {
  static const std::vector<ProfileKey> keys(std::begin(kProfileKeys), std::end(kProfileKeys));
  return keys;
}

std::vector<ProfileKey> not_measured(const Profile& profile) {
  std::vector<ProfileKey> absent;
  for (const ProfileKey& key : kProfileKeys)
    if (!key.command.empty() && !has(profile, key.name)) absent.push_back(key);
  return absent;
}

}  // namespace ashlar::machine
