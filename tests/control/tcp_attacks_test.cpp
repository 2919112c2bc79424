// Links over TCP among strangers: who does not know the epoch, or only heard what was said, neither
// takes part nor does harm.
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <atomic>

#include "ashlar/control/wire.h"
#include "tests/control/tcp_support.h"

namespace ashlar::control {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const std::string& text) {
  const auto span = std::as_bytes(std::span(text));
  return {span.begin(), span.end()};
}

Bytes hello_of(const Epoch& epoch, int rank, int parent) {
  return Handshake::of_child(epoch, rank, parent, random_nonce()).take_outgoing();
}

// A frame of version 1, in which the epoch stood.
Bytes frame_of_version_1(int source) {
  WireWriter out;
  out.put_bytes(bytes_of("ACF1"));
  out.put(uint32_t(0xffff));
  out.put(kEpoch);
  for (const int number : {source, 0, 0}) out.put(uint32_t(number));
  return out.take();
}

void expect_links_work(Ranks& ranks) {
  const size_t before = ranks.heard[0]->messages[1].size();
  ranks.send(1, 0, 9, 10);
  EXPECT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->messages[1].size() > before; }));
}

TEST(TcpAttacks, StrangersAreTurnedAwayAndCounted) {
  auto ranks = std::make_unique<Ranks>(3, 3, quick());
  ASSERT_TRUE(ranks->wait_until_linked());
  const uint16_t port = ranks->all[0].port;
  Bytes forged = hello_of(kEpoch, 1, 0);
  const Bytes proof = bytes_of(std::string(32, 'x'));
  forged.insert(forged.end(), proof.begin(), proof.end());
  for (const Bytes& said : {bytes_of("GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"),
                            bytes_of(std::string(5000, '\0')), frame_of_version_1(1), forged,
                            hello_of(kEpoch, 0, 0),      // no child of rank 0
                            hello_of(kEpoch, 77, 0)}) {  // no rank at all
    Stranger stranger(port);
    ASSERT_TRUE(stranger.connected);
    stranger.say(said);
    EXPECT_TRUE(stranger.is_turned_away());
  }
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Stranger>(port));
  EXPECT_TRUE(silent[0]->is_turned_away());  // the oldest of too many
  silent.resize(36);                         // those that were turned away
  expect_links_work(*ranks);
  EXPECT_EQ(ranks->heard[0]->links[1], 1);
  for (auto& each : ranks->links) each.reset();
  const std::vector<std::string> lines = ranks->log_lines();
  ASSERT_EQ(lines.size(), 4u) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_NE(lines[0].find("control links of rank 0: a connection of 127.0.0.1:"),
            std::string::npos);
  EXPECT_NE(lines[0].find("was refused: it begins with 20544547, not with a hello"),
            std::string::npos)
      << lines[0];
  EXPECT_NE(lines[2].find("was refused: it speaks the control links of an older version; start all "
                          "ranks with one build of this program; further ones are counted"),
            std::string::npos)
      << lines[2];
  // How many of the last ones were refused before the run ended is up to chance.
  EXPECT_TRUE(lines[3].starts_with("warning: control links of rank 0: ") &&
              lines[3].find(" connections from 1 address were refused in all, ") !=
                  std::string::npos)
      << lines[3];
}

// Three scans that say nothing hide no word of who does.
TEST(TcpAttacks, ScansOfPortsAreOnlyCounted) {
  auto ranks = std::make_unique<Ranks>(2, 2, quick());
  ASSERT_TRUE(ranks->wait_until_linked());
  for (int i = 0; i < 200; ++i) Stranger scan(ranks->all[0].port);
  Stranger real(ranks->all[0].port);
  real.say(bytes_of("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(real.is_turned_away());
  expect_links_work(*ranks);
  for (auto& each : ranks->links) each.reset();
  const std::vector<std::string> lines = ranks->log_lines();
  ASSERT_EQ(lines.size(), 2u) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_NE(lines[0].find("not with a hello"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[1],
            "warning: control links of rank 0: 201 connections from 1 address were refused in all, "
            "200 of "
            "which said nothing");
}

// A byte now and then does not make the time longer.
TEST(TcpAttacks, AStrangerThatTricklesIsTurnedAwayAfterFiveSeconds) {
  Ranks ranks(2, 2, quick());
  ASSERT_TRUE(ranks.wait_until_linked());
  Stranger stranger(ranks.all[0].port);
  const Bytes hello = hello_of(kEpoch, 1, 0);
  const auto start = Clock::now();
  for (size_t i = 0; i + 1 < hello.size(); ++i) {
    if (!stranger.try_to_say(std::span(hello).subspan(i, 1))) break;
    pollfd closed{stranger.fd(), POLLIN, 0};
    if (::poll(&closed, 1, 400) > 0) break;
  }
  EXPECT_TRUE(stranger.is_turned_away());
  EXPECT_GT(seconds_since(start), 4.5);
  EXPECT_LT(seconds_since(start), 10);
  const std::vector<std::string> lines = ranks.log_lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("it did not prove itself within 5 s"), std::string::npos) << lines[0];
  expect_links_work(ranks);
}

// Even who knows the epoch takes no link that is alive.
TEST(TcpAttacks, ALiveLinkIsNotTakenOver) {
  LinkOptions options = quick();
  options.ping_s = 5;
  Ranks ranks(2, 2, options);
  ASSERT_TRUE(ranks.wait_until_linked());
  for (int i = 0; i < 20; ++i) {
    Twin twin(ranks.all[0].port, 1, 0);
    EXPECT_TRUE(twin.is_turned_away());
  }
  expect_links_work(ranks);
  EXPECT_EQ(ranks.heard[0]->links[1], 1);
  EXPECT_EQ(ranks.heard[1]->links[0], 1);
  const std::vector<std::string> lines = ranks.log_lines();
  ASSERT_GE(lines.size(), 1u);
  EXPECT_NE(lines[0].find("it says that it is rank 1, which was heard "), std::string::npos)
      << lines[0];
}

// A child whose old connection is half open connects anew, and that one counts.
TEST(TcpAttacks, ASilentLinkGivesItsPlaceToTheChildThatComesAgain) {
  Ranks ranks(2, 2, quick(), {1});
  Twin before(ranks.all[0].port, 1, 0);
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->links[1] == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // two pings and more
  Twin after(ranks.all[0].port, 1, 0);
  ASSERT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->links[1] == 2; }));
  EXPECT_TRUE(before.is_turned_away());
  after.say(after.frame(9, bytes_of("here")));
  EXPECT_TRUE(ranks.heard[0]->wait([&] { return ranks.heard[0]->messages[1].size() == 1; }));
}

// Somebody on the way between rank 1 and rank 0, through whose hands everything passes.
class Wire {
 public:
  // change: of what the child says, from the first byte on; the result is passed on.
  using Change = std::function<Bytes(const Bytes& said, int connection)>;
  Wire(uint16_t to, Change change) : to_(to), change_(std::move(change)), listener_(make()) {
    thread_ = std::thread([this] { run(); });
  }
  ~Wire() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }
  uint16_t port() const {
    sockaddr_in bound{};
    socklen_t size = sizeof(bound);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &size);
    return ntohs(bound.sin_port);
  }
  Bytes heard(bool of_child) {
    const std::lock_guard lock(mutex_);
    return heard_[of_child];
  }

 private:
  static int make() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd, 8), 0);
    return fd;
  }
  void run() {
    for (int connection = 0; !stop_;) {
      pollfd waiting{listener_, POLLIN, 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const int child = accept(listener_, nullptr, nullptr);
      Stranger parent(to_);
      carry(child, parent.fd(), connection++);
      ::close(child);
    }
  }
  void carry(int child, int parent, int connection) {
    while (!stop_) {
      pollfd found[2] = {{child, POLLIN, 0}, {parent, POLLIN, 0}};
      if (::poll(found, 2, 20) <= 0) continue;
      for (const bool of_child : {true, false}) {
        if (!found[of_child ? 0 : 1].revents) continue;
        Bytes bytes(65536);
        const ssize_t count = recv(of_child ? child : parent, bytes.data(), bytes.size(), 0);
        if (count <= 0) return;
        bytes.resize(size_t(count));
        {
          const std::lock_guard lock(mutex_);
          heard_[of_child].insert(heard_[of_child].end(), bytes.begin(), bytes.end());
        }
        if (of_child) bytes = change_(bytes, connection);
        if (::send(of_child ? parent : child, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
      }
    }
  }

  uint16_t to_;
  Change change_;
  int listener_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  Bytes heard_[2];
  std::thread thread_;
};

// Two ranks, of which the child reaches its parent through a Wire.
class OnTheWay : public testing::Test {
 protected:
  void start(Wire::Change change) {
    std::vector<Listener> listeners;
    std::vector<Address> all;
    for (int rank = 0; rank < 2; ++rank) {
      listeners.emplace_back(Reach::kMachine);
      all.push_back(parse_address(listeners.back().address()));
    }
    const Tree tree = make_tree(std::vector<int>{0, 0});
    parent_port = all[0].port;
    wire.emplace(all[0].port, std::move(change));
    LinkOptions options = quick();
    options.ping_s = 100;  // nothing but what the test says
    parent.emplace(std::move(listeners[0]), kEpoch, 0, all, tree, at_parent, options, log);
    all[0].port = wire->port();
    all[0].hosts = {"127.0.0.1"};
    child.emplace(std::move(listeners[1]), kEpoch, 1, all, tree, at_child, options, log);
    ASSERT_TRUE(at_child.wait([&] { return at_child.links[0] > 0; }));
  }
  void say(uint16_t kind, const std::string& text) { child->send(0, kind, bytes_of(text)); }
  bool heard(uint16_t kind, const std::string& text) {
    return at_parent.wait([&] {
      return std::ranges::count(at_parent.messages[1], std::pair(kind, bytes_of(text))) > 0;
    });
  }
  void TearDown() override {
    std::thread ends([&] { child.reset(); });
    parent.reset();
    ends.join();
    wire.reset();
  }

  Log log{[](std::string_view) {}};
  Heard at_parent, at_child;
  uint16_t parent_port = 0;
  std::optional<Wire> wire;
  std::optional<TcpLinks> parent, child;
};

// All that could be read off the wire, said again: the epoch is not in it, and it opens nothing.
TEST_F(OnTheWay, WhatIsOverheardIsOfNoUse) {
  start([](const Bytes& said, int) { return said; });
  say(5, "step 7 is saved");
  ASSERT_TRUE(heard(5, "step 7 is saved"));
  const auto secret = std::as_bytes(std::span(kEpoch));
  for (const bool of_child : {true, false}) {
    const Bytes all = wire->heard(of_child);
    EXPECT_FALSE(all.empty());
    EXPECT_TRUE(std::ranges::search(all, secret).empty());
  }
  for (int i = 0; i < 5; ++i) {
    Stranger again(parent_port);
    again.try_to_say(wire->heard(true));
    EXPECT_TRUE(again.is_turned_away());
  }
  EXPECT_EQ(at_parent.links[1], 1);
  EXPECT_EQ(at_parent.messages[1].size(), 1u);
}

// A frame that says "step 7 failed", with the right number and no key.
TEST_F(OnTheWay, AForgedMessageBreaksTheConnectionAndIsNotHeard) {
  std::atomic<bool> forge = false;
  start([&](const Bytes& said, int connection) {
    if (connection > 0 || !forge.exchange(false)) return said;
    const Hmac no_key(std::as_bytes(std::span(kEpoch)));
    return FrameWriter(no_key).next(6, bytes_of("step 7 failed"));
  });
  forge = true;
  say(5, "lost");
  ASSERT_TRUE(at_parent.wait([&] { return at_parent.links[1] == 2; }));
  ASSERT_TRUE(at_child.wait([&] { return at_child.links[0] == 2; }));
  say(5, "said again");
  EXPECT_TRUE(heard(5, "said again"));
  EXPECT_EQ(at_parent.messages[1].size(), 1u);
}

// Each change of what was said ends the connection, and the next one carries on.
TEST_F(OnTheWay, FlippedReplayedReorderedAndDroppedFramesAreRefused) {
  enum Attack { kNone, kFlip, kReplay, kReorder, kDrop };
  std::atomic<int> attack = kNone;
  std::vector<Bytes> kept;
  start([&](const Bytes& said, int) {
    Bytes passed = said;
    switch (attack.exchange(kNone)) {
      case kFlip:
        passed.back() ^= std::byte(1);
        break;
      case kReplay:
        passed.insert(passed.end(), said.begin(), said.end());
        break;
      case kReorder: {  // the second of two frames of one size first
        const size_t half = said.size() / 2;
        std::rotate(passed.begin(), passed.begin() + ptrdiff_t(half), passed.end());
        break;
      }
      case kDrop:
        passed.clear();
        break;
      default:
        break;
    }
    return passed;
  });
  int links = 1;
  for (const Attack each : {kFlip, kReplay, kReorder, kDrop}) {
    SCOPED_TRACE(each);
    ASSERT_TRUE(at_child.wait([&] { return at_child.links[0] == links; }));
    attack = each;
    const std::string text = fmt::format("message {}", int(each));
    say(7, text);
    if (each == kReorder) say(7, text);  // in one piece or two: either comes wrong
    if (each == kDrop) {
      while (attack != kNone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      say(7, "after what was dropped");
    }
    ++links;
    ASSERT_TRUE(at_parent.wait([&] { return at_parent.links[1] == links; }));
    const auto count =
        std::ranges::count(at_parent.messages[1], std::pair(uint16_t(7), bytes_of(text)));
    EXPECT_LE(count, each == kReplay || each == kReorder ? 1 : 0);
    EXPECT_EQ(std::ranges::count(at_parent.messages[1],
                                 std::pair(uint16_t(7), bytes_of("after what was dropped"))),
              0);
  }
  ASSERT_TRUE(at_child.wait([&] { return at_child.links[0] == links; }));
  say(8, "all is well");
  EXPECT_TRUE(heard(8, "all is well"));
}

}  // namespace
}  // namespace ashlar::control
