// The socket at which ranks tell the launcher who they are (core/agent.h).
//
// Its name is abstract, in no directory, and ends with the launcher.  A process of another user is
// refused.  The number of a process comes from the kernel, not from the process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "ashlar/core/agent.h"

namespace ashlar::launch {

struct JoinedRank {
  AgentHello hello;
  pid_t pid = 0;
};

class RankSocket {
 public:
  // name: "@NAME"; "": a new one.  kLaunch if no socket can be made, or another process has it.
  explicit RankSocket(const std::string& name = "");
  ~RankSocket();
  RankSocket(const RankSocket&) = delete;
  RankSocket& operator=(const RankSocket&) = delete;

  const std::string& name() const { return name_; }  // for kAgentVariable
  int fd() const { return fd_; }                     // readable when somebody has come
  // The next who came; nullopt: nobody, or somebody who did not say what a rank says.
  std::optional<JoinedRank> accept();

 private:
  std::string name_;
  int fd_ = -1;
};

}  // namespace ashlar::launch
