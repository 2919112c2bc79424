#include "ashlar/launch/rank_socket.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

// A rank sends its line as soon as it has connected.
constexpr timeval kHelloPatience{.tv_sec = 1, .tv_usec = 0};

std::string receive_line(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kHelloPatience, sizeof kHelloPatience);
  std::array<char, 512> text{};
  const ssize_t count = recv(fd, text.data(), text.size(), 0);
  return std::string(text.data(), count > 0 ? size_t(count) : 0);
}

}  // namespace

RankSocket::RankSocket(const std::string& name) : name_(name) {
  std::random_device random;
  if (name_.empty())
    name_ = fmt::format("@ashlar-launch-{}-{:08x}{:08x}", getpid(), random(), random());
  const sockaddr_un address = *agent_address(name_);
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool listens =
      fd_ >= 0 && bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(fd_, SOMAXCONN) == 0;
  if (listens) return;
  const int error = errno;
  if (fd_ >= 0) close(fd_);
  ASHLAR_REQUIRE(error != EADDRINUSE, kLaunch,
                 "this machine has a launcher of this run directory already; stop it, or choose "
                 "another train.run_dir");
  ASHLAR_FAIL(kLaunch, "no Unix socket for the ranks can be made: {}", strerror(error));
}

RankSocket::~RankSocket() {
  close(fd_);
}

std::optional<JoinedRank> RankSocket::accept() {
  const int peer = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (peer < 0) return std::nullopt;
  ucred who{};
  socklen_t size = sizeof who;
  const bool known = getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  std::optional<JoinedRank> joined;
  if (known && who.uid == geteuid()) {
    try {
      joined = {parse_hello(receive_line(peer)), who.pid};
    } catch (const Error&) {  // a stranger: the caller goes on without it
    }
  }
  close(peer);
  return joined;
}

}  // namespace ashlar::launch
