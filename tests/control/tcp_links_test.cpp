// The links of 64 ranks as threads of one process: messages, broken connections, strangers.
#include "ashlar/control/tcp_links.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <set>

#include "ashlar/control/wire.h"
#include "ashlar/core/rng.h"
#include "tests/support/errors.h"

namespace ashlar::control {
namespace {

using testing_support::message_of;

const Epoch kEpoch{4, 5, 6};

// What a rank was told, to be waited for.
class Heard : public LinkUser {
 public:
  void linked(int rank) override {
    note([&] {
      ++links[rank];
      up.insert(rank);
    });
  }
  void received(int rank, uint16_t kind, std::span<const std::byte> body) override {
    note([&] { messages[rank].emplace_back(kind, std::vector(body.begin(), body.end())); });
  }
  void lost(int rank, const std::string& why) override {
    note([&] { losses[rank] = why; });
  }
  void tick() override {
    note([&] { ++ticks; });
  }
  // False after 20 s.
  bool wait(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), done);
  }

  std::map<int, int> links;
  std::set<int> up;
  std::map<int, std::vector<std::pair<uint16_t, std::vector<std::byte>>>> messages;
  std::map<int, std::string> losses;
  int ticks = 0;

 private:
  void note(const std::function<void()>& body) {
    {
      const std::lock_guard lock(mutex_);
      body();
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
};

LinkOptions quick() {
  LinkOptions options;
  options.tick_s = 0.02;
  options.ping_s = 0.1;
  options.connect_s = 15;
  options.reconnect_s = 10;
  return options;
}

// All ranks of a run; those of `missing` never start.
class Ranks {
 public:
  Ranks(int size, int ranks_a_node, const LinkOptions& options, const std::set<int>& missing = {})
      : heard(size_t(size)), links(size_t(size)) {
    std::vector<Listener> listeners(static_cast<size_t>(size));
    for (const Listener& listener : listeners) all.push_back(parse_address(listener.address()));
    std::vector<int> nodes;
    for (int rank = 0; rank < size; ++rank) nodes.push_back(rank / ranks_a_node);
    tree = make_tree(nodes);
    for (int rank = 0; rank < size; ++rank) {
      heard[size_t(rank)] = std::make_unique<Heard>();
      if (missing.contains(rank)) continue;
      links[size_t(rank)] =
          std::make_unique<TcpLinks>(std::move(listeners[size_t(rank)]), kEpoch, rank, all, tree,
                                     *heard[size_t(rank)], options, log);
    }
  }
  ~Ranks() {
    std::vector<std::thread> threads;  // at once, as the ranks of a run end
    for (auto& each : links) threads.emplace_back([&each] { each.reset(); });
    for (std::thread& thread : threads) thread.join();
  }
  int size() const { return int(links.size()); }
  size_t neighbours(int rank) const { return tree.children[size_t(rank)].size() + (rank > 0); }
  bool wait_until_linked() {
    for (int rank = 0; rank < size(); ++rank)
      if (links[size_t(rank)] && !heard[size_t(rank)]->wait([&] {
            return heard[size_t(rank)]->up.size() == neighbours(rank);
          }))
        return false;
    return true;
  }
  void send(int from, int to, uint16_t kind, size_t bytes) {
    links[size_t(from)]->send(to, kind, std::vector<std::byte>(bytes, std::byte(kind)));
  }

  std::mutex mutex;
  std::vector<std::string> lines;  // of the log, under mutex
  Log log{[this](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  }};
  std::vector<Address> all;
  Tree tree;
  std::vector<std::unique_ptr<Heard>> heard;
  std::vector<std::unique_ptr<TcpLinks>> links;
};

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

// A socket of no rank, to rank 0.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Stranger() { ::close(fd_); }
  void say(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
  }
  bool is_turned_away() {  // within a second or so
    timeval limit{3, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    std::byte byte;
    return recv(fd_, &byte, 1, 0) <= 0 && errno != EAGAIN;
  }
  bool connected = false;

 private:
  int fd_;
};

TEST(TcpLinks, TurnStrangersAway) {
  Ranks ranks(3, 3, quick());
  ASSERT_TRUE(ranks.wait_until_linked());
  const uint16_t port = ranks.all[0].port;
  const auto bytes = [](const std::string& text) {
    const auto span = std::as_bytes(std::span(text));
    return std::vector(span.begin(), span.end());
  };
  std::vector<std::byte> oversize = encode_frame(kEpoch, 0xffff, 1, {});
  oversize[30] = std::byte(255);  // of the length
  for (const auto& said :
       {bytes("GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"), bytes(std::string(5000, '\0')),
        encode_frame(Epoch{1}, 0xffff, 1, {}),  // another start's
        encode_frame(kEpoch, 0xffff, 0, {}),    // no child of rank 0
        encode_frame(kEpoch, 0xffff, 77, {}),   // no rank at all
        encode_frame(kEpoch, 3, 1, {}),         // no hello
        oversize}) {
    Stranger stranger(port);
    ASSERT_TRUE(stranger.connected);
    stranger.say(said);
    EXPECT_TRUE(stranger.is_turned_away());
  }
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Stranger>(port));
  EXPECT_TRUE(silent[0]->is_turned_away());  // the oldest of too many
  ranks.send(1, 0, 9, 10);                   // the links are as they were
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->messages[1].size() == 1; }));
  EXPECT_EQ(ranks.heard[0]->links[1], 1);
  const std::lock_guard lock(ranks.mutex);
  ASSERT_EQ(ranks.lines.size(), 3u);  // three are told of, not a hundred
  EXPECT_NE(ranks.lines[0].find("was refused: it begins with 20544547, not with a frame"),
            std::string::npos)
      << ranks.lines[0];
}

// A child whose old connection is half open connects anew, and that one counts.
TEST(TcpLinks, ANewConnectionTakesThePlaceOfTheOld) {
  Ranks ranks(2, 2, quick());
  ASSERT_TRUE(ranks.wait_until_linked());
  {
    Stranger twin(ranks.all[0].port);  // knows the epoch: as rank 1 after its machine's network
    ASSERT_TRUE(twin.connected);       // came back
    twin.say(encode_frame(kEpoch, 0xffff, 1, {}));
    ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->links[1] >= 2; }));
  }
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->links[1] >= 3; }));
  ASSERT_TRUE(ranks.heard[1]->wait([&] { return ranks.heard[1]->links[0] >= 2; }));
  ranks.send(1, 0, 9, 10);
  EXPECT_TRUE(ranks.heard[0]->wait([&] { return !ranks.heard[0]->messages[1].empty(); }));
}

// Half open: connected, but nothing comes any more.
TEST(TcpLinks, SilenceBreaksAConnection) {
  LinkOptions options = quick();
  options.silence_s = 0.5;
  options.reconnect_s = 0.5;
  Ranks ranks(2, 2, options, {1});
  Stranger mute(ranks.all[0].port);
  mute.say(encode_frame(kEpoch, 0xffff, 1, {}));
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->up.contains(1); }));
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->losses.contains(1); }));
  EXPECT_EQ(ranks.heard[0]->losses[1], "no sign of life for 0.5 s");
}

TEST(Address, IsTextAndBack) {
  const Listener listener;
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

TEST(Address, OfAnInterfaceByName) {
  EXPECT_EQ(parse_address(Listener("lo").address()).hosts[0], "127.0.0.1");
  const std::string message = message_of(ErrorKind::kComm, [] { Listener("no-such-interface"); });
  EXPECT_NE(message.find("interface 'no-such-interface' has no address; those that have one: "),
            std::string::npos);
  EXPECT_NE(message.find("lo"), std::string::npos);
}

}  // namespace
}  // namespace ashlar::control
