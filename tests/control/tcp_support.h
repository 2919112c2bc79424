// Ranks of a run on links over TCP, each with a user that remembers what it was told, and sockets
// of strangers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/control/tcp_links.h"

namespace ashlar::control {

inline const Epoch kEpoch{4, 5, 6};

// All that a rank was told, to be waited for.
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

inline LinkOptions quick() {
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
    std::vector<Listener> listeners;
    for (int rank = 0; rank < size; ++rank) listeners.emplace_back(Reach::kMachine);
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
  std::vector<std::string> log_lines() {
    const std::lock_guard lock(mutex);
    return lines;
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

// A socket of no rank, to a port of this machine.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    const timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~Stranger() { ::close(fd_); }
  void say(std::span<const std::byte> bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
  }
  // False once the other side has closed.
  bool try_to_say(std::span<const std::byte> bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size());
  }
  // The next bytes; empty: nothing comes any more.
  std::vector<std::byte> hear() {
    std::vector<std::byte> bytes(4096);
    const ssize_t count = recv(fd_, bytes.data(), bytes.size(), 0);
    bytes.resize(size_t(std::max<ssize_t>(0, count)));
    return bytes;
  }
  // Whatever it hears before that.
  bool is_turned_away() {
    for (;;) {
      std::byte byte;
      errno = 0;
      if (recv(fd_, &byte, 1, 0) <= 0) return errno != EAGAIN;
    }
  }
  int fd() const { return fd_; }
  bool connected = false;

 private:
  int fd_;
};

// A process that knows the epoch, and says that it is this rank.
class Twin : public Stranger {
 public:
  Twin(uint16_t port, int rank, int parent, const Epoch& epoch = kEpoch)
      : Stranger(port), handshake_(Handshake::of_child(epoch, rank, parent, random_nonce())) {
    say(handshake_.take_outgoing());
    while (!handshake_.done()) {
      const std::vector<std::byte> heard = hear();
      if (heard.empty()) return;
      handshake_.feed(heard);
    }
    say(handshake_.take_outgoing());
    writer_.emplace(handshake_.keys().sending);
  }
  std::vector<std::byte> frame(uint16_t kind, std::span<const std::byte> body = {}) {
    return writer_->next(kind, body);
  }

 private:
  Handshake handshake_;
  std::optional<FrameWriter> writer_;
};

}  // namespace ashlar::control
