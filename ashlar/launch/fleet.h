// The machines of a launch, as the launcher that leads them sees them (leader.h).  A launcher
// without a fleet has all ranks on its own machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ashlar/launch/attempt.h"
#include "ashlar/launch/node_placement.h"

namespace ashlar::launch {

class Fleet {
 public:
  virtual ~Fleet() = default;

  virtual int64_t epoch() const = 0;  // of this leader
  // Hears the agents and renews the lead, several times a second.  False: this process leads no
  // more, and must neither start nor write anything.
  virtual bool lead(double now) = 0;
  // Says which leader of this job left the run to this one without an end; "": none.
  virtual std::string lost_leader() = 0;
  // Whether this process still leads, as of this moment: asked before each start, and before what
  // the next launcher reads is written.
  virtual bool is_newest() = 0;
  virtual bool asked_to_stop() const = 0;  // a signal came to an agent
  // Says what an attempt lacks to start; "": nothing.
  virtual std::string missing(double now) = 0;
  virtual std::unique_ptr<Attempt> start(const AttemptCommand& command, int attempt,
                                         RankSocket& socket) = 0;
  // The layout of the attempt that runs or ran last, if it is one of fewer nodes than the run's.
  virtual const std::optional<LaunchLayout>& fewer_nodes() const = 0;
  // Draws from a cause what it says about a node.
  virtual void judge(const Cause& cause, double now) = 0;
  // A move of the attempt that runs, by which steps would take less time: to more nodes, or away
  // from the node of a slow rank (-1: there is none), without which they take that share less.
  virtual std::optional<NodePlacement::Move> move(int slow_rank, double share, double now) = 0;
  virtual void leave_out(const NodePlacement::Move& move) = 0;  // the node that the move leaves
  // Lines for people about nodes, since the last call.
  virtual std::vector<std::string> take_notes() = 0;
  virtual void end(int exit_code) = 0;  // the run is over: all agents end with this code
};

}  // namespace ashlar::launch
