// The nodes and the layout of a launch's next attempt, and the nodes that are checked before:
// decisions without side effects, as those of Policy.
//
//   node     fit if it is ready (its agent is heard, and no older rank lives there), not in
//            quarantine, and did not fail its check, or not answer, within kAgain_s.  Too few: slow
//            nodes are fit, too, and those in quarantine that may do.
//   check    every node of an attempt has passed one since the last attempt that ran there; a spare
//            has passed one in the last kFresh_s.
//   layout   the run's own, or one of fewer nodes if there are too few (launch.elastic)
//
// A move ends an attempt that runs, at a save: to more nodes, or away from a slow one.
//
// Cost     linear in the nodes, times the logarithm.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/launch/layouts.h"
#include "ashlar/launch/preflight.h"

namespace ashlar::launch {

struct NodeRules {
  int num_nodes = 1;  // of the run
  Elastic elastic = Elastic::kOff;
  bool preflight = true;
  int64_t first_check = 1;  // the number of the first check; those of earlier leaders are smaller
  double patience_s = 10;   // for nodes that come late to the first attempt, before fewer are taken
};

// A node whose agent is heard.
struct NodeView {
  std::string name;
  bool ready = true;    // no older rank lives there
  bool held = false;    // it is in quarantine, and may do if nodes are too few
  bool broken = false;  // it is in quarantine for a fault of its own
};

class NodePlacement {
 public:
  static constexpr double kAgain_s = 60, kSpare_s = 1800, kFresh_s = 2100;
  // For a thorough check, with a link that breaks for a moment as the order or the answer passes.
  static constexpr double kAnswer_s = 25;
  static constexpr double kSlow = 0.85;  // of the median rate, below which a node is slow

  NodePlacement(const NodeRules& rules, double now)
      : rules_(rules), since_s_(now), next_number_(rules.first_check) {}
  void know(LaunchLayouts layouts) { layouts_ = std::move(layouts); }

  // The next attempt, as of now; this begins checks that it lacks.
  struct Decision {
    std::string missing = {};                 // "": it can start
    std::vector<std::string> nodes = {};      // of the attempt; empty: too few
    std::optional<LaunchLayout> layout = {};  // of fewer nodes
    bool asks = false;                        // for checks that nobody knows of yet
  };
  Decision decide(std::span<const NodeView> nodes, double now);
  // The attempt starts.
  void start(const Decision& decision);

  // Begins the checks that are due of nodes beside the attempt that runs.
  void check_spares(std::span<const NodeView> nodes, double now);
  CheckOrder check_of(const std::string& node) const;  // for its agent
  struct Failure {
    std::string node, evidence;
    bool broken = false;  // not only slow
  };
  // The result of a node's check, once.  Unless it found wrong results, the first failure is
  // followed by a thorough check, and the second one counts.
  std::optional<Failure> take(const std::string& node, const CheckResult& result, double now);
  // Since the last call: nodes that were found slow, and those that did not answer for kAnswer_s.
  std::vector<Failure> take_slow() { return std::exchange(slow_, {}); }
  std::vector<std::string> take_silent() { return std::exchange(silent_, {}); }
  void suspect(const std::string& node) { checks_[node].suspect = true; }
  // Its agent was not heard for a while: it may not have had the order of a check.
  void find_again(const std::string& node, double now);
  // The leader did not run for so long, in which nobody could come or answer.
  void skip(double seconds);

  // A move by which steps take this share less time; nullopt: there is none.
  struct Move {
    double share = 0;
    std::string text;            // "3 of 3 nodes are there"
    std::string from_node = {};  // that is left out; "": none
  };
  std::optional<Move> grow(std::span<const NodeView> nodes, double now) const;
  std::optional<Move> leave(const std::string& slow_node, double share,
                            std::span<const NodeView> nodes, double now) const;

  const std::vector<std::string>& nodes() const { return nodes_; }  // of the last attempt
  bool runs_on(const std::string& node) const;                      // likewise
  const std::optional<LaunchLayout>& layout() const { return layout_; }

 private:
  struct Check {
    int64_t number = 0;
    bool open = false, thorough = false;
    double asked_s = 0, done_s = 0;
    // kSilent: its agent did not answer.
    enum class Result : uint8_t { kNone, kPassed, kSlow, kBroken, kSilent } result = Result::kNone;
    int failures = 0;  // in a row
    bool suspect = false, ran_since = false;
    double product_rate = 0, memory_rate = 0;
    std::string evidence = {};
  };
  bool has_passed(const std::string& node, double now) const;
  bool has_failed(const std::string& node, Check::Result how, double now) const;
  bool lacks_check(const std::string& node, double now) const;
  bool is_out(const std::string& node, double now) const;
  void begin_check(const std::string& node, double now);
  bool judge_rates(const std::vector<std::string>& chosen, double now);
  std::vector<std::string> fit_nodes(std::span<const NodeView> nodes, double now) const;
  std::string why_unfit(std::span<const NodeView> nodes, double now) const;

  NodeRules rules_;
  double since_s_;
  LaunchLayouts layouts_;
  std::map<std::string, Check> checks_;
  int64_t next_number_;  // of a check
  std::vector<Failure> slow_;
  std::vector<std::string> silent_;
  std::vector<std::string> nodes_;
  std::optional<LaunchLayout> layout_;
};

}  // namespace ashlar::launch
