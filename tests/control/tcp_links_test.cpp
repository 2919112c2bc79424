// Links over TCP: what is sent arrives, what breaks comes up again, what is gone is told.
#include <fmt/ranges.h>
#include <ifaddrs.h>

#include "ashlar/control/wire.h"
#include "ashlar/core/rng.h"
#include "tests/control/tcp_support.h"
#include "tests/support/errors.h"

namespace ashlar::control {
namespace {

using testing_support::message_of;

TEST(TcpLinks, CarryMessagesOfAllSizesBothWays) {
  Ranks ranks(64, 8, quick());
  ASSERT_TRUE(ranks.wait_until_linked());
  const std::vector<size_t> sizes{0, 1, 1000, 300'000};
  for (int rank = 1; rank < ranks.size(); ++rank)
    for (size_t i = 0; i < sizes.size(); ++i) {
      ranks.send(rank, ranks.tree.parent[size_t(rank)], uint16_t(i), sizes[i]);
      ranks.send(ranks.tree.parent[size_t(rank)], rank, uint16_t(i), sizes[i]);
    }
  for (int rank = 1; rank < ranks.size(); ++rank) {
    const int parent = ranks.tree.parent[size_t(rank)];
    for (const auto& [at, from] : {std::pair(rank, parent), std::pair(parent, rank)}) {
      Heard& heard = *ranks.heard[size_t(at)];
      const int source = from;
      ASSERT_TRUE(heard.wait([&] { return heard.messages[source].size() == sizes.size(); }));
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(heard.messages[source][i].first, i);
        EXPECT_EQ(heard.messages[source][i].second, std::vector<std::byte>(sizes[i], std::byte(i)));
      }
    }
  }
}

// Links break by chance while ranks go on sending: each comes up again, and carries on.
TEST(TcpLinks, ComeUpAgain) {
  Ranks ranks(64, 8, quick());
  ASSERT_TRUE(ranks.wait_until_linked());
  const Rng rng(1, "breaks");
  for (uint64_t i = 0; i < 300; ++i) {
    const int rank = 1 + int(rng.below(2 * i, 63)), parent = ranks.tree.parent[size_t(rank)];
    if (rng.below(2 * i + 1, 2))
      ranks.links[size_t(rank)]->break_connection(parent);
    else
      ranks.links[size_t(parent)]->break_connection(rank);
    ranks.send(rank, parent, 1, 5000);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  // Whatever is lost, a message that is said again arrives in the end.
  for (int rank = 1; rank < ranks.size(); ++rank) {
    Heard& heard = *ranks.heard[size_t(ranks.tree.parent[size_t(rank)])];
    bool there = false;
    for (int tries = 0; tries < 100 && !there; ++tries) {
      ranks.send(rank, ranks.tree.parent[size_t(rank)], 2, 8);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      there = heard.wait([&] {
        for (const auto& [kind, body] : heard.messages[rank]) there |= kind == 2;
        return true;
      }) && there;
    }
    EXPECT_TRUE(there) << rank;
    EXPECT_TRUE(heard.losses.empty());
  }
}

TEST(TcpLinks, AreLostWithAReason) {
  LinkOptions options = quick();
  options.connect_s = 0.5;
  options.reconnect_s = 0.5;
  Ranks ranks(4, 1, options, {2});
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->losses.contains(2); }));
  EXPECT_EQ(ranks.heard[0]->losses[2], "it never connected");
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->up.contains(1); }));
  ranks.links[1].reset();  // it ends in good order
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->losses.contains(1); }));
  EXPECT_EQ(ranks.heard[0]->losses[1], "");
  ranks.links[0].reset();
  ASSERT_TRUE(ranks.heard[3]->wait([&] { return ranks.heard[3]->losses.contains(0); }));
  EXPECT_EQ(ranks.heard[3]->losses[0], "");
}

// Half open: connected, but nothing comes any more.
TEST(TcpLinks, SilenceBreaksAConnection) {
  LinkOptions options = quick();
  options.silence_s = 0.5;
  options.reconnect_s = 0.5;
  Ranks ranks(2, 2, options, {1});
  Twin mute(ranks.all[0].port, 1, 0);
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->up.contains(1); }));
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->losses.contains(1); }));
  EXPECT_EQ(ranks.heard[0]->losses[1], "no sign of life for 0.5 s");
}

TEST(Address, IsTextAndBack) {
  const Listener listener(Reach::kNetwork);
  const Address address = parse_address(listener.address());
  EXPECT_GT(address.port, 0);
  EXPECT_FALSE(address.hosts.empty());
  EXPECT_EQ(parse_address("n7/b 40213 10.0.0.5,fd00::1").hosts,
            (std::vector<std::string>{"10.0.0.5", "fd00::1"}));
  EXPECT_EQ(parse_address("n7/b 40213 10.0.0.5").host_name(), "n7");
  EXPECT_EQ(
      nodes_of(std::vector{parse_address("a 1 x"), parse_address("b 1 x"), parse_address("a 2 x")}),
      (std::vector<int>{0, 1, 0}));
  for (const char* bad :
       {"", "n7", "n7 40213", "n7 0 10.0.0.5", "n7 70000 10.0.0.5", "n7 4x 10.0.0.5", "n7 40213 "})
    EXPECT_NE(message_of(ErrorKind::kComm, [&] { parse_address(bad); }).find("not an address"),
              std::string::npos);
}

// Where it listens, as the system knows it, is where it says that it does.
TEST(Address, IsAllThatIsListenedAt) {
  for (const auto& [reach, name] : {std::pair(Reach::kMachine, ""),
                                    {Reach::kNetwork, ""},
                                    {Reach::kNetwork, "lo"},
                                    {Reach::kMachine, "lo"}}) {
    const Listener listener(reach, name);
    const Address address = parse_address(listener.address());
    std::vector<std::string> hosts;
    for (const Socket& socket : listener.sockets()) {
      sockaddr_storage bound{};
      socklen_t size = sizeof(bound);
      ASSERT_EQ(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
      char text[INET6_ADDRSTRLEN];
      const bool v4 = bound.ss_family == AF_INET;
      const auto& in4 = reinterpret_cast<sockaddr_in&>(bound);
      const auto& in6 = reinterpret_cast<sockaddr_in6&>(bound);
      inet_ntop(bound.ss_family, v4 ? static_cast<const void*>(&in4.sin_addr) : &in6.sin6_addr,
                text, sizeof text);
      hosts.push_back(text);
      EXPECT_EQ(ntohs(v4 ? in4.sin_port : in6.sin6_port), address.port);
    }
    EXPECT_EQ(hosts, address.hosts);
    for (const std::string& host : hosts) {
      EXPECT_TRUE(host != "0.0.0.0" && host != "::") << host;
      if (reach == Reach::kMachine || std::string(name) == "lo") {
        EXPECT_TRUE(host.starts_with("127.") || host == "::1") << host;
      }
    }
  }
}

TEST(Address, OfAnInterfaceByName) {
  EXPECT_EQ(parse_address(Listener(Reach::kNetwork, "lo").address()).hosts[0], "127.0.0.1");
  const std::string message =
      message_of(ErrorKind::kComm, [] { Listener(Reach::kMachine, "no-such-interface"); });
  EXPECT_NE(message.find("interface 'no-such-interface' has no address; those that have one: "),
            std::string::npos);
  EXPECT_NE(message.find("lo"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::control
