// The leader of a launch on several machines: the Fleet of the Launcher, made of agents that are
// linked to this process (agent_star.h) and say what their ranks do (agent_messages.h).
// FleetDecisions gets what it hears, and says what it does.
//
// It starts every attempt by one program (srun, mpirun), as a LocalAttempt whose ranks are
// elsewhere.  An attempt is fenced when that program has ended and every agent that is heard says
// that none of its ranks lives.  Ranks on a node that is not heard may live: the lease of the
// checkpoints is the fence there, because the next attempt's ranks take it over at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/core/files.h"
#include "ashlar/core/log.h"
#include "ashlar/launch/agent_messages.h"
#include "ashlar/launch/agent_star.h"
#include "ashlar/launch/epochs.h"
#include "ashlar/launch/fleet.h"
#include "ashlar/launch/fleet_decisions.h"

namespace ashlar::launch {

struct FleetSpec {
  int64_t epoch = 1;
  int num_before = 0;  // agents that the leader before heard; 0: unknown
  int num_nodes = 1;   // of the run
  int ranks_per_node = 1;
  std::string directory;  // RUN_DIR/launch, which exists
  std::string job = {};   // by which agents of one start of a job know each other
  StarterKind kind = StarterKind::kSrun;
  // The words before those of the ranks' own command.
  std::function<std::vector<std::string>(const std::vector<std::string>& nodes, int ranks_per_node)>
      starter = {};
  std::vector<std::string> variables = {};  // NAME=VALUE, for the starter
  std::string interface_name = {};          // to listen at; "": every one that is up
  // The nodes on which the starter can start ranks at this moment; nullopt: it does not say.
  std::function<std::optional<std::vector<std::string>>()> startable = {};
  LaunchSpec limits = {};
  std::string layouts = {};  // LaunchLayouts::question; "": none are asked for
};

class Leader : public Fleet {
 public:
  Leader(const FleetSpec& spec, FileSystem& files, Log& log);

  int64_t epoch() const override { return spec_.epoch; }
  bool lead(double now) override;
  std::string lost_leader() override;
  bool asked_to_stop() const override;
  std::string missing(double now) override;
  std::unique_ptr<Attempt> start(const AttemptCommand& command, int attempt,
                                 RankSocket& socket) override;
  const std::optional<LaunchLayout>& fewer_nodes() const override { return decisions_.layout(); }
  void judge(const Cause& cause, double now) override;
  std::optional<NodePlacement::Move> move(int slow_rank, double share, double now) override;
  void leave_out(const NodePlacement::Move& move) override;
  std::vector<std::string> take_notes() override;
  bool is_newest() override;
  void end(int exit_code) override;

  // For the attempt that runs.
  void take_news(Attempt::News& news);
  Watch::Sight look(Watch& watch, double now);
  void ask_ranks_to_stop();
  bool ranks_are_gone();
  std::string node_of(int rank) const;
  int64_t memory_kills() const;
  bool hears(int agent) const { return decisions_.is_heard(agent); }  // by its number

 private:
  // A page stands still on its agent's clock, and so must it here: its offset changes only with it.
  struct SeenPage {
    int64_t moved_ns = -1, offset_ns = 0;
  };
  struct Agent {
    AgentReport report;
    std::map<int, SeenPage> seen = {};
    std::set<int> living = {};  // ranks of the attempt that runs, as it last reported
  };
  void pass(double now);
  void take_report(int number, std::span<const std::byte> body);
  void give_orders();
  void renew();
  void read_layouts();
  void ask_starter();
  static void move_to_here(Agent& agent, PulsePage& page);
  void save_quarantine();

  const FleetSpec spec_;
  FileSystem& files_;
  Log& log_;
  EpochFiles epochs_;
  Tenure tenure_;
  AgentStar star_;
  int attempt_ = 0;  // that runs, or ran last
  FleetDecisions decisions_;
  bool knows_layouts_ = false;  // all of them
  double layouts_read_s_ = 0, starter_asked_s_ = 0;
  std::map<int, Agent> agents_;
  AgentOrder order_;
  double now_ = 0, renewed_s_ = 0, written_s_ = 0;
  int64_t newest_ = 0;                // epoch
  std::map<int, std::string> ranks_;  // of that attempt that have joined, with their nodes
  std::vector<Evidence> gone_;        // of these, that have ended since the last news
};

}  // namespace ashlar::launch
