#include "ashlar/core/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

namespace ashlar {
namespace {

using Texts = std::map<std::string, std::string>;

int64_t limit(std::string_view groups, const Texts& files) {
  return memory_limit_of_groups(groups, [&](const std::string& path) -> std::string {
    const auto found = files.find(path);
    return found == files.end() ? "" : found->second;
  });
}

TEST(MemoryLimit, IsThatOfTheTightestGroupAbove) {
  const std::string root = "/sys/fs/cgroup";
  EXPECT_EQ(limit("", {}), INT64_MAX);
  EXPECT_EQ(limit("0::/\n", {}), INT64_MAX);
  EXPECT_EQ(limit("0::/\n", {{root + "/memory.max", "1048576\n"}}), 1048576);
  EXPECT_EQ(limit("0::/a/b\n", {{root + "/a/b/memory.max", "max\n"},
                                {root + "/a/memory.max", "4096\n"},
                                {root + "/memory.max", "max\n"}}),
            4096);
  EXPECT_EQ(limit("0::/only/the/host/has/this\n", {{root + "/memory.max", "8192\n"}}), 8192);
  EXPECT_EQ(limit("5:cpu,memory:/x\n2:devices:/y\n",
                  {{root + "/memory/x/memory.limit_in_bytes", "12288\n"},
                   {root + "/memory/y/memory.limit_in_bytes", "1\n"}}),
            12288);
}

TEST(MemoryLimit, OfThisProcessIsSomeOfTheMachinesMemory) {
  EXPECT_GT(memory_limit_bytes(), 0);
  EXPECT_LE(memory_limit_bytes(),
            int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE)));
}

}  // namespace
}  // namespace ashlar
