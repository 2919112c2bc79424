// The word of a process to the launcher that started it (ashlar launch), over a Unix socket.
//
// The launcher sets the two variables.  A process connects once and says which rank it is and when
// it started; the kernel tells the launcher its number and user.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar {

inline constexpr const char* kAgentVariable = "ASHLAR_AGENT";      // @NAME of an abstract socket
inline constexpr const char* kAttemptVariable = "ASHLAR_ATTEMPT";  // which start of the run this is
// The epoch of the leader that started the process, if several machines have launchers.
inline constexpr const char* kEpochVariable = "ASHLAR_EPOCH";

// The value of kAttemptVariable; 0: nobody counts the starts.
int64_t launch_attempt();
// The value of kEpochVariable; 0: there is one launcher, or none.
int64_t launch_epoch();

// The line that a process sends: "rank 3 of 8, attempt 2 of epoch 1, started 4711, on n07\n".
struct AgentHello {
  int rank = 0, num_ranks = 1;
  int64_t attempt = 0, epoch = 0;
  uint64_t start_ticks = 0;  // with its number they name the process (ProcessStat)
  std::string host;
};
std::string to_line(const AgentHello& hello);
AgentHello parse_hello(const std::string& line);  // kLaunch: it is none

// The address of "@NAME"; nullopt: it is none, or too long.
std::optional<sockaddr_un> agent_address(std::string_view name);

// Tells the launcher, if kAgentVariable is set, and adds attempt, epoch and start_ticks.
// kLaunch if nobody listens.
void tell_agent(const AgentHello& hello);

}  // namespace ashlar
