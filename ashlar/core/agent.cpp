#include "ashlar/core/agent.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ashlar/core/error.h"
#include "ashlar/core/process.h"

namespace ashlar {

namespace {

int64_t number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoll(text) : 0;
}

}  // namespace

int64_t launch_attempt() {
  return number_in(kAttemptVariable);
}

int64_t launch_epoch() {
  return number_in(kEpochVariable);
}

std::string to_line(const AgentHello& hello) {
  return fmt::format("rank {} of {}, attempt {} of epoch {}, started {}, on {}\n", hello.rank,
                     hello.num_ranks, hello.attempt, hello.epoch, hello.start_ticks, hello.host);
}

AgentHello parse_hello(const std::string& line) {
  AgentHello hello;
  std::array<char, 256> host{};
  long attempt = 0, epoch = 0;
  unsigned long ticks = 0;
  const int read =
      std::sscanf(line.c_str(), "rank %d of %d, attempt %ld of epoch %ld, started %lu, on %255s",
                  &hello.rank, &hello.num_ranks, &attempt, &epoch, &ticks, host.data());
  hello.attempt = attempt;
  hello.epoch = epoch;
  hello.start_ticks = ticks;
  ASHLAR_REQUIRE(read == 6 && hello.rank >= 0 && hello.rank < hello.num_ranks, kLaunch,
                 "'{}' came to the launcher's socket; expected the word of a rank", line);
  hello.host = host.data();
  return hello;
}

std::optional<sockaddr_un> agent_address(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!name.starts_with('@') || name.size() > sizeof address.sun_path) return std::nullopt;
  name.copy(address.sun_path, name.size());
  address.sun_path[0] = '\0';  // an abstract name: in no directory
  return address;
}

void tell_agent(const AgentHello& hello) {
  const char* name = std::getenv(kAgentVariable);
  if (!name) return;
  const std::optional<sockaddr_un> address = agent_address(name);
  ASHLAR_REQUIRE(address, kLaunch, "{} is {}; expected @NAME, as a launcher sets it",
                 kAgentVariable, name);
  AgentHello said = hello;
  said.attempt = launch_attempt();
  said.epoch = launch_epoch();
  if (const auto stat = stat_of_process(getpid())) said.start_ticks = stat->start_ticks;
  const std::string line = to_line(said);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool sent =
      fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0 &&
      send(fd, line.data(), line.size(), MSG_NOSIGNAL) == ssize_t(line.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  // The launcher of a node among several may be lost, and other nodes still have theirs.
  ASHLAR_REQUIRE(sent || said.epoch == 0, kComm, "the launcher of this node is not there: {}",
                 strerror(error));
  ASHLAR_REQUIRE(sent, kLaunch,
                 "{} is {}, but no launcher can be told there: {}; unset it to start by hand",
                 kAgentVariable, name, strerror(error));
}

}  // namespace ashlar
