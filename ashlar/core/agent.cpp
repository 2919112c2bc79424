#include "ashlar/core/agent.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ashlar/core/error.h"

namespace ashlar {

int64_t launch_attempt() {
  const char* text = std::getenv(kAttemptVariable);
  return text ? std::atoll(text) : 0;
}

std::string to_line(const AgentHello& hello) {
  return fmt::format("rank {} of {} on {}\n", hello.rank, hello.num_ranks, hello.host);
}

AgentHello parse_hello(const std::string& line) {
  AgentHello hello;
  std::array<char, 256> host{};
  const int read = std::sscanf(line.c_str(), "rank %d of %d on %255s", &hello.rank,
                               &hello.num_ranks, host.data());
  ASHLAR_REQUIRE(read == 3 && hello.rank >= 0 && hello.rank < hello.num_ranks, kLaunch,
                 "'{}' came to the launcher's socket; expected the word of a rank", line);
  hello.host = host.data();
  return hello;
}

void tell_agent(const AgentHello& hello) {
  const char* path = std::getenv(kAgentVariable);
  if (!path) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string_view name(path);
  ASHLAR_REQUIRE(name.size() < sizeof address.sun_path, kLaunch,
                 "{} is {}, a path of {} bytes; a socket's has at most {}", kAgentVariable, name,
                 name.size(), sizeof address.sun_path - 1);
  name.copy(address.sun_path, name.size());
  const std::string line = to_line(hello);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool said = fd >= 0 &&
                    connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                    send(fd, line.data(), line.size(), MSG_NOSIGNAL) == ssize_t(line.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  ASHLAR_REQUIRE(said, kLaunch,
                 "{} is {}, but no launcher can be told there: {}; unset it to start by hand",
                 kAgentVariable, name, strerror(error));
}

}  // namespace ashlar
