#include "ashlar/launch/rank_socket.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "ashlar/core/error.h"

namespace ashlar::launch {
namespace {

// A rank sends its line as soon as it has connected.
constexpr timeval kHelloPatience{.tv_sec = 1, .tv_usec = 0};

void require_socket(bool condition, const std::string& path) {
  ASHLAR_REQUIRE(condition, kLaunch,
                 "{}: a socket for the ranks cannot be made there: {}; choose another TMPDIR, with "
                 "a short path",
                 path, strerror(errno));
}

std::string receive_line(int fd) {
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kHelloPatience, sizeof kHelloPatience);
  std::array<char, 512> text{};
  const ssize_t count = recv(fd, text.data(), text.size(), 0);
  return std::string(text.data(), count > 0 ? size_t(count) : 0);
}

}  // namespace

RankSocket::RankSocket() {
  const char* temporary = getenv("TMPDIR");
  directory_ = fmt::format("{}/ashlar-launch-XXXXXX", temporary ? temporary : "/tmp");
  require_socket(mkdtemp(directory_.data()) != nullptr, directory_);
  path_ = directory_ + "/agent";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() < sizeof address.sun_path)
    path_.copy(address.sun_path, path_.size());
  else
    errno = ENAMETOOLONG;
  const bool fits = address.sun_path[0] != '\0';
  if (fits) fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool listens = fd_ >= 0 &&
                       bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                       listen(fd_, SOMAXCONN) == 0;
  if (listens) return;
  const int error = errno;
  if (fd_ >= 0) close(fd_);
  rmdir(directory_.c_str());
  errno = error;
  require_socket(false, path_);
}

RankSocket::~RankSocket() {
  close(fd_);
  unlink(path_.c_str());
  rmdir(directory_.c_str());
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
