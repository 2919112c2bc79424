// Closed formulas of collectives and of storage: bandwidth conventions, ceilings of clusters, and
// what a run's reading asks of a disk.
//
// Sizes and bandwidths follow nccl-tests: S is the number of bytes of the whole array, algbw is
// S / time, and busbw is algbw times a factor of the operation, so that busbw compares with the
// rate of a link whatever the number of ranks.
#pragma once

#include <cstdint>
#include <string_view>

namespace ashlar::machine {

enum class CollectiveOp {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kAllToAllV,
  kGather,
  kScatter,
  kBroadcast,
  kReduce,
  kSendReceive,
  kBarrier,
};
// "all_reduce", ..., as in tables and files.
std::string_view to_string(CollectiveOp op);
CollectiveOp collective_of(std::string_view name);  // kConfig with the nearest name

// busbw / algbw for n ranks: 2 (n - 1) / n for all_reduce, (n - 1) / n where every rank keeps its
// own part, else 1.
double bus_factor(CollectiveOp op, int64_t n);

// How the devices of a node reach each other.
enum class NodeLinks {
  kMesh,    // a link between every two: a group of n uses n - 1 of a device's links
  kSwitch,  // every device reaches every other at its full rate
};

struct Cluster {
  NodeLinks links = NodeLinks::kSwitch;
  int64_t devices = 1;   // of a node
  double link_gbps = 0;  // mesh: of one link and direction; switch: of a device and direction
  double nic_gbps = 0;   // of the one NIC of each device, per direction
  // The latency of a message between two devices of a node, and of one between nodes.
  double link_us = 0, nic_us = 0;
};

// The busbw, in GB/s, that the links of one node allow a group of n of its devices.
double node_ceiling(const Cluster& cluster, int64_t n);
// The same over `nodes` whole nodes of g devices and g NICs of rate b.  all_to_all: b (n - 1) /
// (n - g); other operations: a flat ring over all NICs, g b.
double cluster_ceiling(const Cluster& cluster, CollectiveOp op, int64_t nodes);
// all_reduce in two levels (reduce_scatter in the node, all_reduce across, all_gather in the node),
// as far as the NICs limit it: it passes the flat ring's ceiling, and the node may allow less.
double two_level_ceiling(const Cluster& cluster, int64_t nodes);

// The messages of an operation on n ranks that wait for each other: a ring's 2 (n - 1) for
// all_reduce, n - 1 where every rank gives or takes a part of each, ceil(log2 n) from or to a root
// and for a barrier, 1 between neighbours.
int64_t hops(CollectiveOp op, int64_t n);
// The least time of an operation over whole nodes, however small: each hop takes as long as the
// slowest edge that it may cross, so one node more makes every message that of a NIC.
double latency_us(const Cluster& cluster, CollectiveOp op, int64_t nodes);
// The time of an operation of that many bytes: its latency, and its bytes at the ceiling's rate.
double collective_us(const Cluster& cluster, CollectiveOp op, int64_t nodes, double bytes);

// Reading training data, from the appendix on storage of "Training Foundation Models on a
// Full-Stack AMD Platform" (arXiv 2511.17127).  sigma >= 1 says how far reads are from contiguous.
struct Reading {
  double sequences = 0;  // of a global batch
  double tokens = 0;     // of a sequence
  double bytes = 0;      // of a token
  double page = 4096;    // bytes
  double sigma = 1;
  double reads_a_step() const { return sigma * sequences * tokens * bytes / page; }
  double required_iops(double step_s) const { return reads_a_step() / step_s; }
  // A run whose steps take less than this waits for a disk of so many reads a second.
  double shortest_step_s(double iops) const { return reads_a_step() / iops; }
};
// 1 + m P / (s b) for m further page faults a sample (index probes, documents that straddle pages).
double scatter_factor(double faults_a_sample, double page, double tokens, double bytes);

// Rows of a product of depth K and width N whose work is `flop`.
double rows_for(double flop, double K, double N);

}  // namespace ashlar::machine
