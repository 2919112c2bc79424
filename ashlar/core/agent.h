// The word of a process to the launcher that started it (ashlar launch), over a Unix socket.
//
// The launcher sets the two variables.  A process connects once and says which rank it is; the
// kernel tells the launcher its number and user.
#pragma once

#include <cstdint>
#include <string>

namespace ashlar {

inline constexpr const char* kAgentVariable = "ASHLAR_AGENT";      // path of the socket
inline constexpr const char* kAttemptVariable = "ASHLAR_ATTEMPT";  // which start of the run this is

// The value of kAttemptVariable; 0: nobody counts the starts.
int64_t launch_attempt();

// The line that a process sends: "rank 3 of 8 on n07\n".
struct AgentHello {
  int rank = 0, num_ranks = 1;
  std::string host;
};
std::string to_line(const AgentHello& hello);
AgentHello parse_hello(const std::string& line);  // kLaunch: it is none

// Tells the launcher, if kAgentVariable is set.  kLaunch if nobody listens there.
void tell_agent(const AgentHello& hello);

}  // namespace ashlar
