// The nodes of the next attempt, and those that are left out of it for a while: decisions without
// side effects, as those of Policy.
//
// A fault counts against the node of the rank that caused it:
//
//   hardware      at once
//   hang          the second on one node within an hour
//   killed        the third within an hour
//
// A node that has its count, failed its check, or is slow, is in quarantine for an hour, then for
// six, then for good.  If more than a tenth of the nodes, and at least two, come to it within ten
// minutes, something else is wrong, and nodes are not to blame any more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/core/json.h"
#include "ashlar/launch/cause.h"

namespace ashlar::launch {

class Quarantine {
 public:
  // nullopt: this is no reason for quarantine, or not yet.
  struct Verdict {
    std::string node, cause, evidence;
    int strikes = 1;     // times that it came to quarantine
    double until_s = 0;  // seconds since 1970; 0: for good
  };
  // now_s: seconds since 1970.
  std::optional<Verdict> count(const std::string& node, const Cause& cause, int num_nodes,
                               double now_s);
  // Leaves a node out at once, for what was found about it.  nullopt: too many are left out lately.
  std::optional<Verdict> leave_out(const std::string& node, const std::string& cause,
                                   const std::string& evidence, int num_nodes, double now_s);
  // Whether too many nodes were left out lately for another one to be left out now.
  bool is_full(int num_nodes, double now_s) const;
  bool holds(const std::string& node, double now_s) const;
  // Whether it is held for a fault of the machine itself, so that it is not even used if nodes are
  // too few without it.
  bool is_broken(const std::string& node, double now_s) const;
  const std::map<std::string, Verdict>& verdicts() const { return verdicts_; }

  // launch/quarantine.json; reading passes over what it does not know.
  Ordered to_json() const;
  static Quarantine from_json(const Json& json);

 private:
  std::map<std::string, Verdict> verdicts_;
  struct Fault {
    FaultClass fault;
    double time_s;
  };
  std::map<std::string, std::vector<Fault>> faults_;  // of nodes, in the last hour
  std::vector<double> recent_;                        // verdicts
};

// `wanted` of these nodes: those of the last attempt first, which have the data in their caches,
// then by name.  Empty: there are too few.
std::vector<std::string> choose_nodes(const std::vector<std::string>& fit,
                                      const std::vector<std::string>& last, size_t wanted);

}  // namespace ashlar::launch
