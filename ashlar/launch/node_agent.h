// An agent: the process of a launch on each of its nodes.
//
// It hears the word of the ranks that are started on its node, watches their processes and pages,
// and reports them to the leader, whose orders it obeys.  It stands for the lead when the leader is
// gone (Candidacy); who gets it leads in a child process, so that the agent goes on beside it.
// Without a leader for kForlorn_s it kills its node's ranks.
//
// Errors   kLaunch if this node has an agent of this run directory already.
#pragma once

#include <functional>
#include <string>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"

namespace ashlar::launch {

struct AgentSpec {
  std::string run_directory, node;
  int number = 1;        // from 1, another one on each node
  std::string job = "";  // by which agents of one start of a job know each other
  double hang_s = 10;
  std::string program = {};  // that checks the node; see Preflight
  int ranks_per_node = 1;
  // Leads in a child process, and returns its exit code; kResignedCode: the run goes on.
  // num_before: agents that the leader before heard; 0: unknown.
  std::function<int(int64_t epoch, int num_before)> lead;
  // Runs beside the leader in another child, of the lowest priority, for as long as it takes.
  std::function<void()> aside = {};
};
inline constexpr int kResignedCode = 75;  // EX_TEMPFAIL; no code of docs/errors.md

// Returns when the run is over: its exit code.
int run_agent(const AgentSpec& spec, FileSystem& files, Log& log);

}  // namespace ashlar::launch
