#include "ashlar/core/affinity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "ashlar/core/error.h"
#include "ashlar/core/threads.h"

namespace ashlar {
namespace {

// The CPUs on which the calling thread may run, by the system.
Cpus mask_of_thread() {
  cpu_set_t set;
  Cpus cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

Cpus mask_of_helper() {
  Cpus mask;
  start_thread("of a test", [&] { mask = mask_of_thread(); }).join();
  return mask;
}

TEST(Affinity, Texts) {
  EXPECT_EQ(cpus_text({}), "none");
  EXPECT_EQ(cpus_text({3}), "3");
  EXPECT_EQ(cpus_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  for (const char* text : {"none", "3", "0-3,8,10-11"})
    EXPECT_EQ(cpus_text(parse_cpus(text)), text);
  for (const char* text : {"", "a", "3-", "3-1", "1,", "1-99999999"})
    EXPECT_THROW(parse_cpus(text), Error) << text;
  EXPECT_EQ(common_cpus({0, 1, 5}, {1, 5, 7}), (Cpus{1, 5}));
}

TEST(Affinity, HelpersOfABoundThreadAreAtHome) {
  const Cpus before = mask_of_thread();
  ASSERT_FALSE(before.empty());
  const Cpus first{before.front()};
  {
    const BoundThread bound(first, before);
    ASSERT_TRUE(bound.is_bound());
    EXPECT_EQ(mask_of_thread(), first);
    EXPECT_EQ(usable_cpus(), before);
    EXPECT_EQ(mask_of_helper(), before);
    Cpus of_helpers_helper;
    start_thread("of a test", [&] { of_helpers_helper = mask_of_helper(); }).join();
    EXPECT_EQ(of_helpers_helper, before);
    EXPECT_EQ(Threads(0).size(), int(before.size()));
  }
  EXPECT_EQ(mask_of_thread(), before);
  EXPECT_EQ(mask_of_helper(), before);
}

TEST(Affinity, WorkersStayOnTheirCpus) {
  const Cpus before = mask_of_thread();
  const std::vector<Cpus> own{{before.front()}, {before.back()}, before};
  const BoundThread bound(own[0], before, own);
  Threads threads(3);
  std::vector<std::vector<Cpus>> masks(3);
  for (int repeat = 0; repeat < 50; ++repeat)
    threads.run(30, [&](int64_t, int worker) {
      if (masks[size_t(worker)].empty()) masks[size_t(worker)].push_back(mask_of_thread());
    });
  int seen = 0;
  for (size_t worker = 0; worker < 3; ++worker)
    for (const Cpus& mask : masks[worker]) {
      EXPECT_EQ(mask, own[worker]) << worker;
      ++seen;
    }
  EXPECT_GE(seen, 1);
  EXPECT_TRUE(worker_cpus(2).empty());  // a pool of another size is at home
}

TEST(Affinity, ARefusalChangesNothing) {
  const Cpus before = mask_of_thread();
  const BoundThread bound({60'000}, {60'000});  // no such CPU
  EXPECT_FALSE(bound.is_bound());
  EXPECT_EQ(mask_of_thread(), before);
  EXPECT_EQ(usable_cpus(), before);
}

}  // namespace
}  // namespace ashlar
