#include "ashlar/machine/laws.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace ashlar::machine {
namespace {

constexpr Cluster kMi300x{NodeLinks::kMesh, 8, 64, 50, 0, 0};

TEST(BusFactor, FollowsNcclTests) {
  EXPECT_NEAR(bus_factor(CollectiveOp::kAllReduce, 8), 1.75, 1e-12);
  EXPECT_NEAR(bus_factor(CollectiveOp::kAllReduce, 2), 1, 1e-12);
  EXPECT_NEAR(bus_factor(CollectiveOp::kAllReduce, 1024), 2 * 1023.0 / 1024, 1e-12);
  for (const CollectiveOp op :
       {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllToAll,
        CollectiveOp::kAllToAllV, CollectiveOp::kGather, CollectiveOp::kScatter})
    EXPECT_NEAR(bus_factor(op, 8), 0.875, 1e-12) << to_string(op);
  for (const CollectiveOp op :
       {CollectiveOp::kBroadcast, CollectiveOp::kReduce, CollectiveOp::kSendReceive})
    EXPECT_EQ(bus_factor(op, 8), 1) << to_string(op);
}

// 4 GiB over 8 devices in 24.02 ms are 178.8 GB/s of algbw and 312.9 GB/s of busbw.
TEST(BusFactor, PublishedExample) {
  const double algbw = 4294967296.0 / 24.02e-3 * 1e-9;
  EXPECT_NEAR(algbw, 178.8, 0.05);
  EXPECT_NEAR(algbw * bus_factor(CollectiveOp::kAllReduce, 8), 312.9, 0.05);
}

// The table of factors, over ranks and operations.
TEST(BusFactor, ArithmeticTo1e12) {
  for (int64_t n = 1; n <= 1024; ++n) {
    const long double part = (n - 1.0L) / n;
    EXPECT_NEAR(bus_factor(CollectiveOp::kAllReduce, n), double(2 * part), 2e-12);
    for (const CollectiveOp op :
         {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllToAll,
          CollectiveOp::kAllToAllV, CollectiveOp::kGather, CollectiveOp::kScatter})
      EXPECT_NEAR(bus_factor(op, n), double(part), 1e-12) << to_string(op) << n;
  }
}

TEST(CollectiveOp, NamesAndNearest) {
  EXPECT_EQ(collective_of("all_to_allv"), CollectiveOp::kAllToAllV);
  EXPECT_NE(testing_support::message_of(ErrorKind::kConfig, [] { collective_of("allreduce"); })
                .find("all_reduce"),
            std::string::npos);
}

TEST(Ceilings, MeshGrowsWithItsLinks) {
  const double gbps[] = {64, 128, 192, 256, 320, 384, 448};
  for (int64_t n = 2; n <= 8; ++n) EXPECT_EQ(node_ceiling(kMi300x, n), gbps[n - 2]);
  EXPECT_EQ(node_ceiling({NodeLinks::kSwitch, 8, 450, 50, 0, 0}, 2), 450);
}

TEST(Ceilings, Clusters) {
  EXPECT_EQ(cluster_ceiling(kMi300x, CollectiveOp::kAllReduce, 4), 400);
  EXPECT_EQ(cluster_ceiling(kMi300x, CollectiveOp::kAllReduce, 1), 448);
  const int64_t nodes[] = {2, 4, 8, 16, 128};
  const double two_level[] = {750, 516.667, 450, 423.333, 402.756};
  const double all_to_all[] = {93.75, 64.5833, 56.25, 52.9167, 50.3445};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(two_level_ceiling(kMi300x, nodes[i]), two_level[i], 1e-3);
    EXPECT_NEAR(cluster_ceiling(kMi300x, CollectiveOp::kAllToAll, nodes[i]), all_to_all[i], 1e-4);
  }
}

// MI355X with Pollara: 370 GB/s of all_reduce and 86.7 of all_to_all on 2 nodes are 92.5 % of both.
TEST(Ceilings, PublishedEfficiency) {
  EXPECT_NEAR(370 / cluster_ceiling(kMi300x, CollectiveOp::kAllReduce, 2), 0.925, 1e-3);
  EXPECT_NEAR(86.7 / cluster_ceiling(kMi300x, CollectiveOp::kAllToAll, 2), 0.925, 1e-3);
}

TEST(Latency, HopsOfEveryOperation) {
  EXPECT_EQ(hops(CollectiveOp::kAllReduce, 8), 14);
  EXPECT_EQ(hops(CollectiveOp::kAllGather, 8), 7);
  EXPECT_EQ(hops(CollectiveOp::kAllToAll, 8), 7);
  EXPECT_EQ(hops(CollectiveOp::kSendReceive, 8), 1);
  const int64_t of_tree[] = {0, 1, 2, 2, 3, 3, 3, 3, 4};
  for (int64_t n = 1; n <= 9; ++n) EXPECT_EQ(hops(CollectiveOp::kBroadcast, n), of_tree[n - 1]);
  for (int op = 0; op <= int(CollectiveOp::kBarrier); ++op)
    EXPECT_EQ(hops(CollectiveOp(op), 1), 0) << to_string(CollectiveOp(op));
}

// A latency that did not depend on the span would make both ratios of small messages 1.
TEST(Latency, W12DoublingTheNodesChangesSmallMessages) {
  Cluster cluster = kMi300x;
  cluster.link_us = 2;
  cluster.nic_us = 5;
  const auto op = CollectiveOp::kAllReduce;
  EXPECT_EQ(latency_us(cluster, op, 1), 14 * 2);
  EXPECT_EQ(latency_us(cluster, op, 2), 30 * 5);  // every hop may be one across nodes
  EXPECT_EQ(latency_us(cluster, op, 4), 62 * 5);
  const double small = 1024, large = 64.0 * (int64_t{1} << 30);
  const auto growth = [&](double bytes) {
    return collective_us(cluster, op, 4, bytes) / collective_us(cluster, op, 2, bytes);
  };
  EXPECT_NEAR(growth(small), 62.0 / 30, 0.01);
  EXPECT_NEAR(growth(large), bus_factor(op, 32) / bus_factor(op, 16), 0.01);
  EXPECT_EQ(latency_us(cluster, CollectiveOp::kBroadcast, 4) -
                latency_us(cluster, CollectiveOp::kBroadcast, 2),
            5);  // one level of the tree
}

// The example of the paper's appendix, and its row of scattered reads.
TEST(Reading, PublishedExample) {
  const double sigmas[] = {1, 1.25, 2, 4, 8};
  const double reads[] = {16384, 20480, 32768, 65536, 131072};
  const double iops[] = {6553.6, 8192, 13107.2, 26214.4, 52428.8};
  const double shortest[] = {0.2340571, 0.2925714, 0.4681143, 0.9362286, 1.8724571};
  for (size_t i = 0; i < 5; ++i) {
    const Reading reading{4096, 4096, 4, 4096, sigmas[i]};
    EXPECT_EQ(reading.reads_a_step(), reads[i]);
    EXPECT_NEAR(reading.required_iops(2.5), iops[i], 1e-9);
    EXPECT_NEAR(reading.shortest_step_s(70000), shortest[i], 1e-7);
  }
  EXPECT_EQ(scatter_factor(1, 4096, 4096, 4), 1.25);
}

TEST(Rows, Of200Gflop) {
  EXPECT_NEAR(rows_for(200e9, 2048, 4096), 11920.9, 0.1);
  EXPECT_NEAR(rows_for(200e9, 2048, 2048), 23841.9, 0.1);
  EXPECT_NEAR(rows_for(200e9, 2048, 1024), 47683.7, 0.1);
  EXPECT_NEAR(rows_for(200e9, 2048, 256), 190734.9, 0.1);
  EXPECT_NEAR(rows_for(200e9, 2048, 262272), 186.2, 0.1);
}

}  // namespace
}  // namespace ashlar::machine
