// Where the ranks of one machine listen for each other.
#include "ashlar/train/save_links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <mutex>

#include "ashlar/comm/thread/run_ranks.h"
#include "ashlar/tensor/allocator.h"

namespace ashlar::train {
namespace {

// The addresses at which this process listens.
std::vector<std::string> listened_at() {
  std::vector<std::string> hosts;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) continue;
    sockaddr_storage bound{};
    size = sizeof bound;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) continue;
    char text[INET6_ADDRSTRLEN] = "";
    const bool v4 = bound.ss_family == AF_INET;
    const void* bytes =
        v4 ? static_cast<const void*>(&reinterpret_cast<sockaddr_in&>(bound).sin_addr)
           : &reinterpret_cast<sockaddr_in6&>(bound).sin6_addr;
    hosts.emplace_back(inet_ntop(bound.ss_family, bytes, text, sizeof text));
  }
  return hosts;
}

struct Found {
  std::vector<std::string> hosts;
  int channels = 0;
  std::string said;
};

Found of_three_ranks(const std::string& interface_name) {
  Found found;
  std::mutex mutex;
  Log log([&](std::string_view line) { found.said += line; });
  Allocator allocator(Device::kCpu);
  comm::run_ranks(3, {}, allocator, [&](comm::Group& ranks) {
    const std::vector<int> writers{0, 1, 2};
    const auto channel = make_save_channel(ranks, writers, interface_name, log);
    {
      const std::lock_guard lock(mutex);
      found.channels += channel != nullptr;
    }
    ranks.barrier("all listen").wait();
    if (ranks.rank() == 0) found.hosts = listened_at();
    ranks.barrier("seen").wait();
  });
  return found;
}

TEST(SaveLinks, OfOneMachineAreAtItsLoopbackAlone) {
  for (const char* name : {"", "lo"}) {
    const Found found = of_three_ranks(name);
    EXPECT_EQ(found.channels, 3);
    EXPECT_GE(found.hosts.size(), 3u);
    for (const std::string& host : found.hosts)
      EXPECT_TRUE(host.starts_with("127.") || host == "::1") << host;
    EXPECT_EQ(found.said, "");
  }
}

TEST(SaveLinks, ListenNowhereWhereTheyAreNotWantedOrCannot) {
  const Found none = of_three_ranks("none");
  EXPECT_EQ(none.channels, 0);
  EXPECT_TRUE(none.hosts.empty());
  EXPECT_EQ(none.said, "");
  const Found wrong = of_three_ranks("no-such-interface");
  EXPECT_EQ(wrong.channels, 0);
  EXPECT_TRUE(wrong.hosts.empty());
  EXPECT_TRUE(wrong.said.starts_with(
      "warning: checkpoints have no control links, and go through their directory: rank 0: "
      "interface 'no-such-interface' has no address; those that have one: "))
      << wrong.said;
}

}  // namespace
}  // namespace ashlar::train
