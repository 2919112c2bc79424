#include "ashlar/core/topology.h"

#include <gtest/gtest.h>

#include "ashlar/core/error.h"
#include "ashlar/core/files.h"

namespace ashlar {
namespace {

TEST(Topology, OfADescription) {
  const Topology t =
      parse_topology("package:2 numa:4 l3:1(size=32MB) l2:14(size=1MB) core:1 pu:2(indexes=2*112)");
  EXPECT_EQ(t.num_packages(), 2);
  EXPECT_EQ(t.num_cores(), 112);
  EXPECT_EQ(t.threads_per_core(), 2);
  EXPECT_EQ(t.cpus.size(), 224u);
  EXPECT_EQ(t.allowed.size(), 224u);
  ASSERT_EQ(t.numa_nodes.size(), 8u);
  EXPECT_EQ(t.numa_nodes[7].cpus.size(), 28u);
  EXPECT_EQ(t.numa_nodes[7].memory_bytes, int64_t(1) << 30);
  EXPECT_EQ(t.farthest(), 1);
  // CPU 1 is beside CPU 0 in the machine only if the system numbers siblings so; here it does not.
  EXPECT_EQ(t.cpus[0].number, 0);
  EXPECT_EQ(t.cpus[1].number, 112);
  EXPECT_EQ(t.cpus[1].core, 0);
  EXPECT_EQ(t.cpus[223].package, 1);
  EXPECT_EQ(t.cpus[223].numa_node, 7);
  int64_t num_l3 = 0;
  for (const Topology::Cache& cache : t.caches) {
    if (cache.level != 3) continue;
    ++num_l3;
    EXPECT_EQ(cache.bytes, 32'000'000);
    EXPECT_EQ(cache.cpus.size(), 28u);
  }
  EXPECT_EQ(num_l3, 8);
}

TEST(Topology, OfAnXmlFile) {
  const std::string file = ASHLAR_FIXTURES "/topology/two_sockets.xml";
  const Topology t = parse_topology(read_text(*posix_files(), file));
  EXPECT_EQ(t.num_packages(), 2);
  EXPECT_EQ(t.num_cores(), 8);
  ASSERT_EQ(t.numa_nodes.size(), 4u);
  EXPECT_EQ(t.numa_nodes[1].cpus, (Cpus{2, 3, 10, 11}));
  EXPECT_EQ(t.numa_nodes[1].distances, (std::vector<int64_t>{12, 10, 21, 21}));
  EXPECT_DOUBLE_EQ(t.farthest(), 2.1);
}

TEST(Topology, RefusesWhatHwlocDoesNotUnderstand) {
  for (const char* text : {"sockets:many", "<nothing/>", ""}) {
    try {
      parse_topology(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    }
  }
}

TEST(Topology, OfThisMachineHasTheUsableCpus) {
  const Topology t = this_machine();
  const Cpus usable = usable_cpus();
  ASSERT_FALSE(usable.empty());
  EXPECT_EQ(common_cpus(usable, t.allowed), usable);
  EXPECT_GE(t.num_cores(), 1);
  EXPECT_GE(t.num_packages(), 1);
  EXPECT_GE(t.farthest(), 1);
}

}  // namespace
}  // namespace ashlar
