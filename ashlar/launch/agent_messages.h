// The messages between an agent and the leader of a launch, as bodies of frames (control/frame.h).
//
// Both tell their whole state, again and again, so that a message that was lost or sent twice does
// no harm.  Times of pages are the agent's; the leader gets its present time with them.
//
// Errors   kComm for a body that is no such message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ashlar/core/pulse.h"
#include "ashlar/launch/preflight.h"

namespace ashlar::launch {

inline constexpr uint16_t kReportFrame = 1, kOrderFrame = 2;
inline constexpr size_t kMaxAgentBody = size_t(1) << 20;
inline constexpr int kMaxOperations = 64;  // of a page

// From an agent, twice a second.
struct AgentReport {
  std::string node;
  bool asked_to_stop = false;  // a signal came to it
  int64_t fenced = 0;          // no rank of this attempt or an earlier one lives on the node
  struct Rank {
    int rank = 0;
    int64_t attempt = 0;
    char state = 'R';          // of its process (ProcessStat)
    std::string trouble = {};  // "": none; else why it is taken for suspended, or for killed
    bool killed = false;
  };
  std::vector<Rank> ranks = {};  // of the present epoch, that live
  int64_t bytes = 0;             // that those at files have moved so far
  int64_t memory_kills = 0;      // in the agent's control group
  int64_t now_ns = 0;            // pulse_now_ns()
  CheckResult check = {};        // the last one of this node
  std::map<int, PulsePage> pages =
      {};  // of these ranks; of their operations, the first kMaxOperations in flight
};

// From the leader, each second and at every change.
struct AgentOrder {
  int64_t fence = 0;      // ranks of this attempt and of earlier ones must not live
  int64_t stop = 0;       // ranks of this attempt are to save and stop; 0: none
  int place = 0;          // of the agent among the living ones
  int num_recent = 0;     // agents that the leader has heard in the last minute
  CheckOrder check = {};  // of the node
  bool over = false;      // the run is over: the agent ends with exit_code
  int exit_code = 0;
};

std::vector<std::byte> to_bytes(const AgentReport& report);
AgentReport parse_report(std::span<const std::byte> bytes);
std::vector<std::byte> to_bytes(const AgentOrder& order);
AgentOrder parse_order(std::span<const std::byte> bytes);

}  // namespace ashlar::launch
