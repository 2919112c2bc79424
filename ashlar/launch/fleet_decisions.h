// The decisions of the leader of a launch on several machines about its nodes: which are heard and
// which are lost, where the next attempt runs, when an attempt is fenced, which nodes are checked,
// left for others, or left out.
//
// Nothing here reads a clock, a file or a socket: times and reports are arguments, so that a
// simulator can drive what Leader drives.  Every decision is as of the last `pass`.
//
// The time in which the leader itself did not run counts against no node, since no agent could be
// heard then: that time is added to all moments from which a node is waited for.
//
// Cost     of a report, logarithmic in the nodes; of others, linear in them, times the logarithm.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/launch/agent_messages.h"
#include "ashlar/launch/cause.h"
#include "ashlar/launch/node_choice.h"
#include "ashlar/launch/node_placement.h"

namespace ashlar::launch {

struct FleetTime {
  double steady_s = 0;    // by a clock that never goes back
  double calendar_s = 0;  // since 1970, for the quarantine, which outlives a leader
};

class FleetDecisions {
 public:
  static constexpr double kLost_s = 5;    // without a report, after which a node is lost
  static constexpr double kAbsent_s = 2;  // between two calls of `pass`: the leader did not run
  // An attempt counts as fenced after that time: a node that does not confirm its end is not used.
  static constexpr double kFencePatience_s = 30;

  // last_attempt: of earlier leaders; its ranks must not live any more.
  FleetDecisions(const NodeRules& rules, Quarantine quarantine, int64_t last_attempt,
                 FleetTime now);

  void pass(FleetTime now);
  void hear(int agent, const AgentReport& report);
  bool is_heard(int agent) const;
  int num_heard(double within_s) const;  // agents
  bool runs_on(const std::string& node) const { return placement_.runs_on(node); }

  void know(LaunchLayouts layouts) { placement_.know(std::move(layouts)); }
  // The nodes on which the starter can start ranks; nullopt: it does not say.
  void know_startable(const std::optional<std::vector<std::string>>& nodes);

  // Decides where the next attempt runs, or what it lacks.
  const NodePlacement::Decision& decide();
  // The next attempt starts there.
  // Errors   kLaunch unless the last decision lacks nothing and no attempt has started with it.
  void start(int64_t attempt);
  const std::vector<std::string>& nodes() const { return placement_.nodes(); }  // of the last one
  const std::optional<LaunchLayout>& layout() const { return placement_.layout(); }
  // The loss of a node of this attempt, once.
  std::optional<Evidence> take_loss();
  // From here on its ranks must not live.  True: the agents are to hear of that.
  bool begin_fence();
  bool is_fenced() const;

  // The parts of an agent's order that are decided here.
  int64_t fence() const { return fence_; }
  CheckOrder check_of(const std::string& node) const { return placement_.check_of(node); }

  // Draws from a cause what it says about the node of its rank; "": unknown.
  void judge(const Cause& cause, const std::string& node);
  void check_spares() { placement_.check_spares(views(), now_.steady_s); }
  // Moves of the attempt that runs: to more nodes, or away from a slow one, without which steps
  // would take that share less time.
  std::optional<NodePlacement::Move> grow() const;
  std::optional<NodePlacement::Move> leave(const std::string& slow_node, double share) const;
  void leave_out(const NodePlacement::Move& move);  // the node that the move leaves

  // Lines for people since the last call; there is one for every change of the quarantine.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }
  const Quarantine& quarantine() const { return quarantine_; }

 private:
  struct Agent {
    std::string node;
    double heard_s = 0;
    int64_t fenced = 0;
    int64_t checked = 0;  // the number of its last result
  };
  bool is_heard(const Agent& agent) const { return now_.steady_s - agent.heard_s < kLost_s; }
  std::vector<NodeView> views() const;
  void note(const std::optional<Quarantine::Verdict>& verdict);
  void note(const NodePlacement::Failure& failure);

  FleetTime now_;
  Quarantine quarantine_;
  NodePlacement placement_;
  NodePlacement::Decision next_;  // attempt
  std::optional<std::set<std::string>> startable_;
  std::map<int, Agent> agents_;
  int64_t attempt_, fence_;
  double fence_s_ = 0;
  bool told_lost_ = false;  // that attempt has lost a node
  std::vector<std::string> notes_;
};

}  // namespace ashlar::launch
