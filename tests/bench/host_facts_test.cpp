#include "ashlar/bench/machine/host_facts.h"

#include <gtest/gtest.h>

namespace ashlar::bench {
namespace {

TEST(HostFacts, OfThisHost) {
  const HostFacts facts = host_facts();
  for (const char* key : {"os", "kernel", "cpu", "isa", "memory", "cpus", "numa_nodes", "libc"})
    EXPECT_TRUE(facts.contains(key)) << key;
  for (const auto& [key, value] : facts) EXPECT_NE(value, "") << key;
}

TEST(HostFacts, WarnOfWhatHurts) {
  EXPECT_TRUE(host_warnings({}).empty());
  EXPECT_TRUE(host_warnings({{"governor", "performance"},
                             {"numa_nodes", "2"},
                             {"numa_balancing", "0"},
                             {"huge_pages", "madvise"},
                             {"locked_memory", "unlimited"},
                             {"libucp", "libucp.so.0"},
                             {"shared_memory", "23.54 GiB"}})
                  .empty());
  const auto only = [](const HostFacts& facts) {
    const std::vector<std::string> warnings = host_warnings(facts);
    return warnings.size() == 1 ? warnings[0] : "not one warning";
  };
  const auto has = [&](const HostFacts& facts, const char* part) {
    EXPECT_NE(only(facts).find(part), std::string::npos) << only(facts);
  };
  has({{"governor", "powersave"}}, "governor of CPU frequencies is powersave");
  has({{"numa_nodes", "2"}, {"numa_balancing", "1"}}, "kernel.numa_balancing=0");
  EXPECT_TRUE(host_warnings({{"numa_nodes", "1"}, {"numa_balancing", "1"}}).empty());
  has({{"huge_pages", "never"}}, "transparent huge pages are off");
  has({{"locked_memory", "8.00 MiB"}, {"libucp", "libucp.so.0"}}, "ulimit -l unlimited");
  EXPECT_TRUE(host_warnings({{"locked_memory", "8.00 MiB"}}).empty());
  has({{"shared_memory", "64.00 MiB"}}, "--shm-size");
  has({{"cpu_limit", "2.0 of 8 CPUs"}}, "the time of 2.0 of 8 CPUs");
}

TEST(HostFacts, DriftNamesTheHostsThatDiffer) {
  const HostFacts usual{
      {"kernel", "6.1.0-25"}, {"cpu", "EPYC 9654"}, {"libmpi", "libmpi.so.40.30.4"}};
  std::vector<NamedHost> hosts;
  for (int i = 1; i <= 7; ++i) hosts.push_back({"n0" + std::to_string(i), usual});
  EXPECT_EQ(drift_text(hosts), "");
  EXPECT_EQ(drift_text({}), "");
  hosts[6].facts["kernel"] = "6.1.0-26";
  hosts[2].facts.erase("libmpi");
  EXPECT_EQ(drift_text(hosts),
            "# hosts differ:\n"
            "kernel           6.1.0-25                         n01, n02, n03, n04 and 2 more\n"
            "kernel           6.1.0-26                         n07\n"
            "libmpi           libmpi.so.40.30.4                n01, n02, n04, n05 and 2 more\n"
            "libmpi           unknown                          n03\n");
}

}  // namespace
}  // namespace ashlar::bench
